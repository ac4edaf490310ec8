//! The settings, which the rest of the service reads, and how flags and variables are resolved to them.

use std::{
    net::IpAddr,
    num::NonZero,
    path::{Path, PathBuf},
    sync::Arc,
    thread::available_parallelism,
    time::Duration,
};

use http::HeaderName;
use weir_coordinate::CoordinationSettings;
use weir_disk::DiskSettings;
use weir_export::{
    log::{self, LevelFilter, LogFormat},
    otlp::MetricSettings,
    prometheus::TimeUnit,
    statsd::{Dialect, Protocol, StatsdSettings},
    trace::{TraceSettings, random_instance_id},
};
use weir_limit::{Modes, Scope, SharedCounts, TableMemory};
use weir_limiter::ReportedRejections;
use weir_net::{dns::DnsSettings, tls::ServerTls};
use weir_observe::{hot_keys::HotKeyValues, text::shortened};
use weir_remotes::RemoteSettings;
use weir_server::{
    bounds::Bounds,
    headers::{HeaderNames, HeaderStyle, ResponseHeaders},
    http::{JsonAccess, admin::AdminSettings, tenant::TenantSettings},
    resp::ServiceSettings,
};
use weir_sources::xds::XdsSettings;
use weir_store::WaitBounds;

use super::{
    admin::{admin, debug_tls, tenants},
    bounds::{bounds, waits},
    coordination::coordination,
    disk,
    environment::Environment,
    flags::Flags,
    json,
    mogrifiers::mogrifiers,
    otlp_metrics, parse,
    reader::{MAX_SHOWN, SettingErrors, SettingReader},
    recording::recording,
    redis_port,
    stores::Backend,
    tls, trace, unknown, unsupported, xds,
};

/// More than any machine has cores: a larger number is a typing error.
const MAX_WORKERS: usize = 1024;

#[derive(Clone, Debug)]
pub struct Settings {
    pub rules: RulesSettings,
    pub grpc: GrpcSettings,
    /// `WEIR_REDIS_PORT`: the server of Redis' protocol, if it is on.
    pub redis_port: Option<RedisPortSettings>,
    /// The HTTP server: `/json`, `/healthcheck`, `/metrics`.
    pub http: ListenAddress,
    /// `WEIR_JSON`: who may use `/json`.
    pub json: JsonAccess,
    pub debug: ListenAddress,
    /// `DEBUG_TLS`: the certificates of the gRPC port, if the debug port is encrypted.
    pub debug_tls: Option<ServerTls>,
    /// `WEIR_ADMIN` and others: who may use the admin API on the debug port.
    pub admin: AdminSettings,
    /// `WEIR_TOKEN_KEY_FILE` and others: how tenants see themselves. None if they do not.
    pub tenants: Option<TenantSettings>,
    /// `USE_PROMETHEUS`: a separate port for metrics, as in envoyproxy/ratelimit. Other HTTP ports always serve them.
    pub prometheus: Option<PrometheusSettings>,
    /// `PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS`: the unit of response times in metrics.
    pub time_unit: TimeUnit,
    /// `PROMETHEUS_MAPPER_YAML`: the file that names the metrics of envoyproxy/ratelimit.
    pub prometheus_mapper: Option<PathBuf>,
    pub statsd: Option<StatsdSettings>,
    /// `SANITIZE_DESCRIPTOR_METRIC_DOTS`: dots in the keys and values of rules are `_` in the names of stats.
    pub dots_are_replaced: bool,
    pub bounds: Bounds,
    /// `TRACING_ENABLED`: how requests are traced, if they are.
    pub trace: Option<TraceSettings>,
    /// `OTEL_METRICS_EXPORTER`: how metrics are sent to an OpenTelemetry collector, if they are.
    pub otlp_metrics: Option<MetricSettings>,
    pub log: LogSettings,
    pub limiter: weir_limiter::DecisionSettings,
    pub response_headers: ResponseHeaders,
    pub coordination: CoordinationSettings,
    /// `WEIR_MAX_COUNTERS`: the maximum number of counters in memory, at least 1.
    pub max_counters: usize,
    /// `WEIR_MAX_WAITERS`, `WEIR_MAX_WAITERS_PER_KEY` and `WEIR_MAX_WAIT`: the bounds on callers that wait.
    pub waits: WaitBounds,
    pub disk: Option<DiskSettings>,
    /// The store that instances share their counts through; without one, each keeps its counts by itself.
    pub shared: Option<RemoteSettings>,
    /// `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`: the service is unhealthy while it has no connection to that store.
    pub health_needs_store: bool,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: the service is healthy only with at least one domain in its rules.
    pub healthy_with_rules_only: bool,
    pub stop: StopSettings,
    /// Warnings about settings without effect, for the log.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct RulesSettings {
    /// `CONFIG_TYPE`: the control plane that sends the rules; none to read them from the directory.
    pub xds: Option<XdsSettings>,
    /// The directory that is read and watched.
    pub dir: PathBuf,
    pub files: weir_config::Options,
    /// `FORCE_START_WITHOUT_INITIAL_CONFIG`: starts without rules if the initial load fails.
    pub force_start: bool,
    pub dns: DnsSettings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcSettings {
    pub address: GrpcAddress,
    /// `GRPC_SERVER_USE_TLS`: the certificates, if connections are encrypted.
    pub tls: Option<ServerTls>,
    /// `GRPC_MAX_CONNECTION_AGE`: the age, ±10 %, at which a connection is closed gracefully; none for no limit.
    pub max_age: Option<Duration>,
    /// `GRPC_MAX_CONNECTION_AGE_GRACE`: the time that its requests may then take; none for no limit.
    pub max_age_grace: Option<Duration>,
    /// `WEIR_WORKERS`: the number of threads, at least 1; by default one per core available to the process.
    pub threads: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisPortSettings {
    pub address: ListenAddress,
    /// `WEIR_REDIS_TLS`: the certificates if connections are encrypted: the gRPC server's, if it has any.
    pub tls: Option<ServerTls>,
    pub service: ServiceSettings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcAddress {
    Tcp(ListenAddress),
    /// `GRPC_UDS`: the path of a unix socket.
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    pub host: IpAddr,
    /// The port; 0 selects a free one.
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    pub address: ListenAddress,
    /// `PROMETHEUS_PATH`; begins with a slash.
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub level: LevelFilter,
    pub format: LogFormat,
    /// `WEIR_LOG_VALUES`: whether the values of descriptors are in the lines about rejections.
    pub values: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopSettings {
    /// `WEIR_STOP_DELAY`: the time to serve after health checks start to fail, so that load balancers notice.
    pub delay: Duration,
    /// `WEIR_STOP_TIMEOUT`: the time that open requests may then take before they are aborted.
    pub timeout: Duration,
}

// === impl Settings ===

impl Settings {
    /// Resolves each setting from `flags`, else from `environment`, else to its default.
    pub fn resolve(flags: &Flags, environment: &dyn Environment) -> Result<Self, SettingErrors> {
        let mut reader = SettingReader::new(flags, environment);
        let read = &mut reader;
        let max_counters = read.parsed("WEIR_MAX_COUNTERS", |text| {
            let counters = parse::integer(text).filter(|counters| *counters > 0);
            counters.ok_or("a number of counters, at least 1")
        });
        let mut warnings = Vec::new();
        let backend = Backend::read(read);
        let shared = backend.shared(read, &mut warnings);
        warnings.extend(unsupported::check(read, backend));
        let grpc = grpc(read, &mut warnings);
        let redis_port = redis_port::redis_port(read, grpc.tls.as_ref(), &mut warnings);
        let grpc_tls = grpc.tls.clone();
        let instance = random_instance_id();
        let coordination = coordination(read, max_counters);
        let disk = disk::disk(read, backend, &coordination);
        let mut settings = Self {
            rules: rules(read, flags, &mut warnings),
            json: json::json(read, grpc.tls.as_ref(), &mut warnings),
            grpc,
            redis_port,
            http: read_http_address(read),
            debug: read_debug_address(read),
            debug_tls: debug_tls(read, grpc_tls.as_ref(), &mut warnings),
            admin: admin(read, &mut warnings),
            tenants: tenants(read, &mut warnings),
            prometheus: prometheus(read),
            time_unit: if read.bool("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS") {
                TimeUnit::Milliseconds
            } else {
                TimeUnit::Seconds
            },
            prometheus_mapper: read.path("PROMETHEUS_MAPPER_YAML"),
            statsd: statsd(read, &mut warnings),
            dots_are_replaced: read.bool("SANITIZE_DESCRIPTOR_METRIC_DOTS"),
            trace: trace::trace(read, backend, &instance, &mut warnings),
            otlp_metrics: otlp_metrics::otlp_metrics(read, &instance, &mut warnings),
            log: LogSettings {
                level: read.parsed("LOG_LEVEL", |text| log::parse_level(text).ok_or(log::LEVELS)),
                format: read_log_format(read, &mut warnings),
                values: read.bool("WEIR_LOG_VALUES"),
            },
            limiter: limiter(read),
            response_headers: response_headers(read),
            bounds: bounds(read),
            waits: waits(read),
            coordination,
            disk,
            max_counters,
            healthy_with_rules_only: read.bool("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
            stop: StopSettings {
                delay: read.duration("WEIR_STOP_DELAY"),
                timeout: read.duration("WEIR_STOP_TIMEOUT"),
            },
            health_needs_store: read.bool("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION") && shared.is_some(),
            shared,
            warnings,
        };
        let unknown = unknown::check(&mut reader, settings.shared.as_ref());
        settings.warnings.extend(unknown);
        reader.finish().map(|()| settings)
    }
}

/// Resolves how rule files are read from `environment`, for commands that only read them.
pub fn file_options(environment: &dyn Environment) -> Result<weir_config::Options, SettingErrors> {
    resolve_only(environment, read_file_options)
}

/// Resolves the directory whose rules the service serves from `environment`, for commands that are given no path. It
/// is an error if the service has its rules from a control plane.
pub fn rules_dir(environment: &dyn Environment) -> Result<PathBuf, SettingErrors> {
    const FILES: &str = "FILE, or the command needs a path: the service has its rules from a control plane";
    resolve_only(environment, |read| {
        if xds::is_wanted(read)
            && let Some(given) = read.given("CONFIG_TYPE")
        {
            read.reject(given, FILES);
        }
        read_rules_dir(read)
    })
}

/// Resolves how instances share counts, and what a rejection affects, for commands that explain rules.
pub fn shared_counts(environment: &dyn Environment) -> Result<(SharedCounts, Scope), SettingErrors> {
    resolve_only(environment, |read| {
        let store = Backend::read(read).store();
        let CoordinationSettings { coordination: mode, sync_interval, on_store_failure, .. } =
            coordination(read, 1);
        let shared = SharedCounts { store, mode, sync_interval, on_store_failure, instances: None };
        (shared, limiter(read).scope)
    })
}

/// Resolves what applies to all rules from `environment`, for commands that decide by them.
pub fn decisions(environment: &dyn Environment) -> Result<weir_limiter::DecisionSettings, SettingErrors> {
    resolve_only(environment, limiter)
}

/// Resolves the address of the debug port from `environment`, for commands that call it.
pub fn debug_address(environment: &dyn Environment) -> Result<ListenAddress, SettingErrors> {
    resolve_only(environment, read_debug_address)
}

/// Resolves the address of the HTTP server from `environment`, for commands that call it.
pub fn http_address(environment: &dyn Environment) -> Result<ListenAddress, SettingErrors> {
    resolve_only(environment, read_http_address)
}

fn resolve_only<T>(
    environment: &dyn Environment,
    read: impl FnOnce(&mut SettingReader<'_>) -> T,
) -> Result<T, SettingErrors> {
    let flags = Flags::default();
    let mut reader = SettingReader::new(&flags, environment);
    let settings = read(&mut reader);
    reader.finish().map(|()| settings)
}

fn read_debug_address(read: &mut SettingReader<'_>) -> ListenAddress {
    ListenAddress { host: read.host("DEBUG_HOST"), port: read.port("DEBUG_PORT") }
}

fn read_http_address(read: &mut SettingReader<'_>) -> ListenAddress {
    ListenAddress { host: read.host("HOST"), port: read.port("PORT") }
}

fn read_file_options(read: &mut SettingReader<'_>) -> weir_config::Options {
    if let Some(given) = read.given("WEIR_TZDIR")
        && let Err(error) = weir_config::use_timezones_of(Path::new(&given.value))
    {
        read.reject(given, format_args!("a directory of time zones, such as /usr/share/zoneinfo: {error}"));
    }
    weir_config::Options {
        merge_domains: read.bool("MERGE_DOMAIN_CONFIG"),
        ignore_dotfiles: read.bool("RUNTIME_IGNOREDOTFILES"),
        tables: weir_config::TableOptions {
            dir: read.given("WEIR_TABLES_DIR").map(|given| given.value.into()),
            memory: Arc::new(TableMemory::new(
                read.parsed("WEIR_MAX_TABLE_BYTES", parse::bytes_from(1 << 20, "256MiB")),
            )),
        },
    }
}

/// The format for lines before the settings are resolved, or about invalid ones. An invalid format counts as text.
pub fn log_format(flags: &Flags, environment: &dyn Environment) -> LogFormat {
    read_log_format(&mut SettingReader::new(flags, environment), &mut Vec::new())
}

/// Like envoyproxy/ratelimit, takes any value of the variable but `json` as text.
fn read_log_format(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> LogFormat {
    const VARIABLE: &str = "LOG_FORMAT";
    const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    if let Some(given) = read.given(VARIABLE)
        && given.name == VARIABLE
        && !FORMATS.iter().any(|(name, _)| name.eq_ignore_ascii_case(&given.value))
    {
        let value = shortened(&given.value, MAX_SHOWN);
        warnings.push(format!("{VARIABLE} is {value:?}, neither text nor json, so the log is text"));
        return LogFormat::Text;
    }
    read.choice(VARIABLE, &FORMATS)
}

fn rules(read: &mut SettingReader<'_>, flags: &Flags, warnings: &mut Vec<String>) -> RulesSettings {
    // has no effect, since the whole path to the rules is always watched; parsed so that typing errors are reported
    read.bool("RUNTIME_WATCH_ROOT");
    let files = read_file_options(read);
    RulesSettings {
        xds: xds::xds(read, files.merge_domains, warnings),
        dir: flags.config.as_ref().map_or_else(|| read_rules_dir(read), PathBuf::from),
        files,
        force_start: read.bool("FORCE_START_WITHOUT_INITIAL_CONFIG"),
        dns: DnsSettings::default(),
    }
}

/// envoyproxy/ratelimit's directory if a variable of its path is set, else `config` in the working directory.
fn read_rules_dir(read: &mut SettingReader<'_>) -> PathBuf {
    let root = read.given("RUNTIME_ROOT");
    let subdirectory = read.given("RUNTIME_SUBDIRECTORY");
    if root.is_none() && subdirectory.is_none() {
        return "config".into();
    }
    let mut dir = PathBuf::from(root.map_or_else(|| "/srv/runtime_data/current".into(), |root| root.value));
    // envoyproxy/ratelimit joins strings, so a leading slash does not make either of them the root
    let below = [subdirectory.map(|below| below.value), Some(read.text("RUNTIME_APPDIRECTORY"))];
    dir.extend(below.iter().flatten().map(|below| below.trim_start_matches('/')));
    dir
}

fn grpc(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> GrpcSettings {
    let host = read.host("GRPC_HOST");
    let port = read.port("GRPC_PORT");
    let socket = read.path("GRPC_UDS");
    GrpcSettings {
        address: socket.map_or(GrpcAddress::Tcp(ListenAddress { host, port }), GrpcAddress::Unix),
        tls: tls::server(read, warnings),
        max_age: max_age(read, "GRPC_MAX_CONNECTION_AGE", warnings),
        max_age_grace: max_age(read, "GRPC_MAX_CONNECTION_AGE_GRACE", warnings),
        threads: read
            .optional("WEIR_WORKERS", parse::count_to(MAX_WORKERS, "threads"))
            .unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get)),
    }
}

/// 0 means none, as in envoyproxy/ratelimit. There, the first connection ends the process if it is negative.
fn max_age(read: &mut SettingReader<'_>, variable: &str, warnings: &mut Vec<String>) -> Option<Duration> {
    let age = read.parsed(variable, parse::signed_duration);
    if age.is_none() {
        warnings.push(format!("{variable} is below 0, which counts as 0: there is no maximum"));
    }
    age.filter(|age| !age.is_zero())
}

fn prometheus(read: &mut SettingReader<'_>) -> Option<PrometheusSettings> {
    let address = read.parsed("PROMETHEUS_ADDR", |text| {
        parse::address(text).ok_or("an address and port to listen on, such as :9090 or 127.0.0.1:9090")
    });
    let path = read.parsed("PROMETHEUS_PATH", |text| {
        if text.starts_with('/') { Ok(text.to_owned()) } else { Err("a path such as /metrics") }
    });
    let wanted = read.bool("USE_PROMETHEUS") && !read.bool("DISABLE_STATS");
    wanted.then_some(PrometheusSettings { address, path })
}

/// Off unless a variable enables it. envoyproxy/ratelimit has it on by default, and logs errors without a server.
fn statsd(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> Option<StatsdSettings> {
    let named = read.is_given("STATSD_HOST");
    let dog = read.bool("USE_DOG_STATSD");
    let wanted = read.optional("USE_STATSD", parse::bool).unwrap_or(named) || dog;
    // as in envoyproxy/ratelimit, DogStatsD uses UDP regardless of STATSD_PROTOCOL
    let protocol = read.choice("STATSD_PROTOCOL", &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)]);
    let settings = StatsdSettings {
        host: read.text("STATSD_HOST"),
        port: read.parsed("STATSD_PORT", |text| {
            parse::integer(text).filter(|port| *port > 0).ok_or("a port from 1 to 65535")
        }),
        protocol: if dog { Protocol::Udp } else { protocol },
        dialect: if dog { Dialect::Dog } else { Dialect::Plain },
        tags: read.parsed("EXTRA_TAGS", parse::pairs).into_iter().collect(),
        interval: read.parsed("STATS_FLUSH_INTERVAL", parse::positive_duration),
        gauges: read.bool("WEIR_STATSD_GAUGES"),
        mogrifiers: mogrifiers(read, dog, warnings),
    };
    (wanted && !read.bool("DISABLE_STATS")).then_some(settings)
}

fn response_headers(read: &mut SettingReader<'_>) -> ResponseHeaders {
    let mut header = |variable: &str| {
        read.parsed(variable, |text| {
            let name = HeaderName::from_bytes(text.as_bytes()).map(|_| text.to_owned());
            name.map_err(|_| "a header's name: letters, digits and any of !#$%&'*+-.^_`|~")
        })
    };
    let reference = HeaderNames {
        limit: header("LIMIT_LIMIT_HEADER"),
        remaining: header("LIMIT_REMAINING_HEADER"),
        reset: header("LIMIT_RESET_HEADER"),
    };
    let for_request = HeaderNames {
        limit: header("LIMIT_REQUEST_LIMIT_HEADER"),
        remaining: header("LIMIT_REQUEST_REMAINING_HEADER"),
        reset: header("LIMIT_REQUEST_RESET_HEADER"),
    };
    let enabled = read.bool("LIMIT_RESPONSE_HEADERS_ENABLED");
    let styles = read.optional("WEIR_RESPONSE_HEADERS", |text| header_styles(text, &reference));
    let of_reference =
        || enabled.then_some(HeaderStyle::LimitRemainingReset(reference)).into_iter().collect();
    let mut styles = styles.unwrap_or_else(of_reference);
    if read.bool("LIMIT_REQUEST_HEADERS_ENABLED") {
        styles.push(HeaderStyle::LimitRemainingResetForRequest(for_request));
    }
    ResponseHeaders { styles }
}

fn limiter(read: &mut SettingReader<'_>) -> weir_limiter::DecisionSettings {
    let whole_request = read.bool("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT");
    weir_limiter::DecisionSettings {
        modes: Modes {
            shadow: read.bool("SHADOW_MODE"),
            quota: read.bool("QUOTA_MODE"),
            metadata: read.bool("RESPONSE_DYNAMIC_METADATA"),
            rejecting_rule: read.bool("WEIR_RULE_METADATA"),
        },
        scope: if whole_request { Scope::Request } else { Scope::Descriptor },
        near_limit_ratio: read.parsed("NEAR_LIMIT_RATIO", |text| {
            let ratio = text.parse().ok().filter(|ratio: &f32| *ratio > 0.0 && *ratio <= 1.0);
            ratio.ok_or("a number above 0 and at most 1, such as 0.8")
        }),
        hot_keys: read.choice(
            "WEIR_HOT_KEYS",
            &[("off", HotKeyValues::Off), ("masked", HotKeyValues::Masked), ("shown", HotKeyValues::Shown)],
        ),
        reported_rejections: read.choice(
            "WEIR_LOG_REJECTIONS",
            &[
                ("off", ReportedRejections::None),
                ("sampled", ReportedRejections::Sampled),
                ("all", ReportedRejections::All),
            ],
        ),
        recording: recording(read),
    }
}

/// Such as `ietf,retry-after`. The style `reference` is the three headers of envoyproxy/ratelimit.
fn header_styles(text: &str, reference: &HeaderNames) -> Result<Vec<HeaderStyle>, &'static str> {
    let style = |name: &str| match name.trim() {
        "reference" => Ok(HeaderStyle::LimitRemainingReset(reference.clone())),
        "x-ratelimit" => Ok(HeaderStyle::LimitRemainingReset(HeaderNames::x_ratelimit())),
        "ietf" => Ok(HeaderStyle::Ietf),
        "retry-after" => Ok(HeaderStyle::RetryAfter),
        _ => Err("any of reference, x-ratelimit, ietf and retry-after, with commas between them"),
    };
    text.split(',').map(style).collect()
}

#[cfg(test)]
pub(super) mod tests;
