//! Resolves flags and variables to [`Settings`]. Holds the name and default of every setting.

use std::{num::NonZero, path::PathBuf, thread::available_parallelism, time::Duration};

use weir_export::{
    log::{self, LogFormat},
    prometheus::TimeUnit,
    statsd::{Dialect, Protocol, StatsdSettings},
    trace::random_instance_id,
};
use weir_limit::{Modes, Scope, SharedCounts, SharedStore};
use weir_limiter::ReportedRejections;
use weir_observe::{hot_keys::HotKeyValues, text::shortened};
use weir_server::headers::{HeaderNames, HeaderStyle, ResponseHeaders};

use super::{
    backend::{Backend, SharedKeys},
    bounds::{bounds, waits},
    coordination::coordination,
    disk,
    environment::Environment,
    flags::Flags,
    json, memcached,
    mogrifiers::mogrifiers,
    otlp_metrics, parse,
    reader::{MAX_SHOWN, SettingErrors, SettingReader},
    redis, redis_port,
    resolved::{
        GrpcAddress, GrpcSettings, ListenAddress, LogSettings, PrometheusSettings, RulesSettings, Settings,
        StopSettings,
    },
    tls, trace, unknown, unsupported, xds,
};

const HOUR: Duration = Duration::from_hours(1);

/// More than any machine has cores: a larger number is a typing error.
const MAX_WORKERS: usize = 1024;

impl Settings {
    /// Resolves each setting from `flags`, else from `environment`, else to its default.
    ///
    /// # Errors
    ///
    /// All invalid settings.
    pub fn resolve(flags: &Flags, environment: &dyn Environment) -> Result<Self, SettingErrors> {
        let mut reader = SettingReader::new(flags, environment);
        let read = &mut reader;
        let max_counters = read.parsed("WEIR_MAX_COUNTERS", 500_000, |text| {
            let counters = parse::integer(text).filter(|counters| *counters > 0);
            counters.ok_or("a number of counters, at least 1")
        });
        let mut warnings = Vec::new();
        let (backend, keys) = (Backend::read(read), SharedKeys::read(read));
        let redis = redis::redis(read, backend, &keys, &mut warnings);
        let memcached = memcached::memcached(read, backend, keys, &mut warnings);
        warnings.extend(unsupported::check(read, backend));
        let grpc = grpc(read, &mut warnings);
        let redis_port = redis_port::redis_port(read, grpc.tls.as_ref(), &mut warnings);
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
            prometheus: prometheus(read),
            time_unit: if read.bool("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS") {
                TimeUnit::Milliseconds
            } else {
                TimeUnit::Seconds
            },
            prometheus_mapper: read.given("PROMETHEUS_MAPPER_YAML").map(|given| given.value.into()),
            statsd: statsd(read, &mut warnings),
            dots_are_replaced: read.bool("SANITIZE_DESCRIPTOR_METRIC_DOTS"),
            trace: trace::trace(read, backend, &instance, &mut warnings),
            otlp_metrics: otlp_metrics::otlp_metrics(read, &instance, &mut warnings),
            log: LogSettings {
                level: read.parsed("LOG_LEVEL", "WARN".to_owned(), |text| {
                    if log::is_level(text) { Ok(text.to_owned()) } else { Err(log::LEVELS) }
                }),
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
                delay: read.duration("WEIR_STOP_DELAY", Duration::from_secs(1)),
                timeout: read.duration("WEIR_STOP_TIMEOUT", Duration::from_secs(30)),
            },
            redis,
            memcached,
            warnings,
        };
        let unknown = unknown::check(&mut reader, settings.redis.as_ref());
        settings.warnings.extend(unknown);
        reader.finish().map(|()| settings)
    }
}

/// Resolves how rule files are read from `environment`, for commands that only read them.
///
/// # Errors
///
/// All invalid settings among these.
pub fn file_options(environment: &dyn Environment) -> Result<weir_config::Options, SettingErrors> {
    let flags = Flags::default();
    let mut reader = SettingReader::new(&flags, environment);
    let options = read_file_options(&mut reader);
    reader.finish().map(|()| options)
}

/// Resolves the directory whose rules the service serves from `environment`, for commands that are given no path.
///
/// # Errors
///
/// All invalid settings among these; also if the service has its rules from a control plane.
pub fn rules_dir(environment: &dyn Environment) -> Result<PathBuf, SettingErrors> {
    let flags = Flags::default();
    let mut reader = SettingReader::new(&flags, environment);
    if let Some(given) = reader.given("CONFIG_TYPE").filter(|given| given.value == "GRPC_XDS_SOTW") {
        reader.reject(
            given,
            "FILE, or the command needs a path: the service has its rules from a control plane",
        );
    }
    let dir = read_rules_dir(&mut reader);
    reader.finish().map(|()| dir)
}

/// Resolves how instances share counts, and what a rejection affects, for commands that explain rules.
///
/// # Errors
///
/// All invalid settings among these.
pub fn shared_counts(environment: &dyn Environment) -> Result<(SharedCounts, Scope), SettingErrors> {
    let flags = Flags::default();
    let mut reader = SettingReader::new(&flags, environment);
    let store = match Backend::read(&mut reader) {
        Backend::Redis => Some(SharedStore::Redis),
        Backend::Memcached => Some(SharedStore::Memcached),
        Backend::Memory | Backend::Disk => None,
    };
    let coordination = coordination(&mut reader, 1);
    let scope = limiter(&mut reader).scope;
    let shared = SharedCounts {
        store,
        mode: coordination.coordination,
        sync_interval: coordination.sync_interval,
        on_store_failure: coordination.on_store_failure,
        instances: None,
    };
    reader.finish().map(|()| (shared, scope))
}

/// Resolves the address of the debug port from `environment`, for commands that call it.
///
/// # Errors
///
/// All invalid settings among these.
pub fn debug_address(environment: &dyn Environment) -> Result<ListenAddress, SettingErrors> {
    let flags = Flags::default();
    let mut reader = SettingReader::new(&flags, environment);
    let address = read_debug_address(&mut reader);
    reader.finish().map(|()| address)
}

/// Resolves the address of the HTTP server from `environment`, for commands that call it.
///
/// # Errors
///
/// All invalid settings among these.
pub fn http_address(environment: &dyn Environment) -> Result<ListenAddress, SettingErrors> {
    let flags = Flags::default();
    let mut reader = SettingReader::new(&flags, environment);
    let address = read_http_address(&mut reader);
    reader.finish().map(|()| address)
}

fn read_debug_address(read: &mut SettingReader<'_>) -> ListenAddress {
    ListenAddress { host: read.host("DEBUG_HOST"), port: read.port("DEBUG_PORT", 6070) }
}

fn read_http_address(read: &mut SettingReader<'_>) -> ListenAddress {
    ListenAddress { host: read.host("HOST"), port: read.port("PORT", 8080) }
}

fn read_file_options(read: &mut SettingReader<'_>) -> weir_config::Options {
    weir_config::Options {
        merge_domains: read.bool("MERGE_DOMAIN_CONFIG"),
        ignore_dotfiles: read.bool("RUNTIME_IGNOREDOTFILES"),
    }
}

/// The format for lines before the settings are resolved, or about invalid ones. An invalid format counts as text.
#[must_use]
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
    read.choice(VARIABLE, LogFormat::Text, &FORMATS)
}

fn rules(read: &mut SettingReader<'_>, flags: &Flags, warnings: &mut Vec<String>) -> RulesSettings {
    // has no effect, since the whole path to the rules is always watched; parsed so that typing errors are reported
    read.parsed("RUNTIME_WATCH_ROOT", true, parse::bool);
    let files = read_file_options(read);
    RulesSettings {
        xds: xds::xds(read, files.merge_domains, warnings),
        dir: flags.config.as_ref().map_or_else(|| read_rules_dir(read), PathBuf::from),
        files,
        force_start: read.bool("FORCE_START_WITHOUT_INITIAL_CONFIG"),
        dns: weir_net::dns::DnsSettings::default(),
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
    let below = [subdirectory.map(|below| below.value), Some(read.text("RUNTIME_APPDIRECTORY", "config"))];
    dir.extend(below.iter().flatten().map(|below| below.trim_start_matches('/')));
    dir
}

fn grpc(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> GrpcSettings {
    let host = read.host("GRPC_HOST");
    let port = read.port("GRPC_PORT", 8081);
    let socket = read.given("GRPC_UDS");
    let mut age = |variable, default| max_age(read, variable, default, warnings);
    let max_age = age("GRPC_MAX_CONNECTION_AGE", 24 * HOUR);
    let max_age_grace = age("GRPC_MAX_CONNECTION_AGE_GRACE", HOUR);
    GrpcSettings {
        address: socket.map_or(GrpcAddress::Tcp(ListenAddress { host, port }), |given| {
            GrpcAddress::Unix(given.value.into())
        }),
        tls: tls::server(read, warnings),
        max_age,
        max_age_grace,
        threads: read.parsed("WEIR_WORKERS", available_parallelism().map_or(1, NonZero::get), |text| {
            let threads = parse::integer(text).filter(|threads| (1..=MAX_WORKERS).contains(threads));
            threads.ok_or("a number of threads, from 1 to 1024")
        }),
    }
}

/// 0 means none, as in envoyproxy/ratelimit. There, the first connection ends the process if it is negative.
fn max_age(
    read: &mut SettingReader<'_>,
    variable: &str,
    default: Duration,
    warnings: &mut Vec<String>,
) -> Option<Duration> {
    let age = read.parsed(variable, Some(default), parse::signed_duration);
    if age.is_none() {
        warnings.push(format!("{variable} is below 0, which counts as 0: there is no maximum"));
    }
    age.filter(|age| !age.is_zero())
}

fn prometheus(read: &mut SettingReader<'_>) -> Option<PrometheusSettings> {
    let address =
        read.parsed("PROMETHEUS_ADDR", ListenAddress { host: [0, 0, 0, 0].into(), port: 9090 }, |text| {
            parse::address(text).ok_or("an address and port to listen on, such as :9090 or 127.0.0.1:9090")
        });
    let path = read.parsed("PROMETHEUS_PATH", "/metrics".to_owned(), |text| {
        if text.starts_with('/') { Ok(text.to_owned()) } else { Err("a path such as /metrics") }
    });
    let wanted = read.bool("USE_PROMETHEUS") && !read.bool("DISABLE_STATS");
    wanted.then_some(PrometheusSettings { address, path })
}

/// Off unless a variable enables it. envoyproxy/ratelimit has it on by default, and logs errors without a server.
fn statsd(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> Option<StatsdSettings> {
    let named = read.given("STATSD_HOST").is_some();
    let dog = read.bool("USE_DOG_STATSD");
    let wanted = read.parsed("USE_STATSD", named || dog, parse::bool) || dog;
    // as in envoyproxy/ratelimit, DogStatsD uses UDP regardless of STATSD_PROTOCOL
    let protocol =
        read.choice("STATSD_PROTOCOL", Protocol::Tcp, &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)]);
    let settings = StatsdSettings {
        host: read.text("STATSD_HOST", "localhost"),
        port: read.parsed("STATSD_PORT", 8125, |text| {
            parse::integer(text).filter(|port| *port > 0).ok_or("a port from 1 to 65535")
        }),
        protocol: if dog { Protocol::Udp } else { protocol },
        dialect: if dog { Dialect::Dog } else { Dialect::Plain },
        tags: read.parsed("EXTRA_TAGS", Vec::new(), parse::pairs).into_iter().collect(),
        interval: read.parsed("STATS_FLUSH_INTERVAL", Duration::from_secs(10), parse::positive_duration),
        gauges: read.bool("WEIR_STATSD_GAUGES"),
        mogrifiers: mogrifiers(read, dog, warnings),
    };
    (wanted && !read.bool("DISABLE_STATS")).then_some(settings)
}

fn response_headers(read: &mut SettingReader<'_>) -> ResponseHeaders {
    let defaults = HeaderNames::default();
    let mut header = |variable: &str, default: &str| {
        read.parsed(variable, default.to_owned(), |text| {
            let name = parse::is_header_name(text).then(|| text.to_owned());
            name.ok_or("a header's name: letters, digits and any of !#$%&'*+-.^_`|~")
        })
    };
    let reference = HeaderNames {
        limit: header("LIMIT_LIMIT_HEADER", &defaults.limit),
        remaining: header("LIMIT_REMAINING_HEADER", &defaults.remaining),
        reset: header("LIMIT_RESET_HEADER", &defaults.reset),
    };
    let for_request = HeaderNames {
        limit: header("LIMIT_REQUEST_LIMIT_HEADER", &defaults.limit),
        remaining: header("LIMIT_REQUEST_REMAINING_HEADER", &defaults.remaining),
        reset: header("LIMIT_REQUEST_RESET_HEADER", &defaults.reset),
    };
    let enabled = read.bool("LIMIT_RESPONSE_HEADERS_ENABLED");
    let styles = read.parsed("WEIR_RESPONSE_HEADERS", Vec::new(), |text| header_styles(text, &reference));
    let mut styles = match styles {
        chosen if !chosen.is_empty() => chosen,
        _ if enabled => vec![HeaderStyle::LimitRemainingReset(reference)],
        _ => Vec::new(),
    };
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
        near_limit_ratio: read.parsed("NEAR_LIMIT_RATIO", 0.8, |text| {
            let ratio = text.parse().ok().filter(|ratio: &f32| *ratio > 0.0 && *ratio <= 1.0);
            ratio.ok_or("a number above 0 and at most 1, such as 0.8")
        }),
        hot_keys: read.parsed("WEIR_HOT_KEYS", HotKeyValues::Shown, |text| match text {
            "off" => Ok(HotKeyValues::Off),
            "masked" => Ok(HotKeyValues::Masked),
            "shown" => Ok(HotKeyValues::Shown),
            _ => Err("off, masked or shown"),
        }),
        reported_rejections: read.parsed(
            "WEIR_LOG_REJECTIONS",
            ReportedRejections::Sampled,
            |text| match text {
                "off" => Ok(ReportedRejections::None),
                "sampled" => Ok(ReportedRejections::Sampled),
                "all" => Ok(ReportedRejections::All),
                _ => Err("off, sampled or all"),
            },
        ),
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
mod tests;
