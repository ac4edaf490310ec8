use std::collections::BTreeMap;

use weir_disk::{DiskSync, OnDamage};
use weir_limit::Period;
use weir_net::grpc_client::Address;
use weir_server::bounds::{Bounds, RequestBounds};
use weir_sources::xds::XdsBackoff;
use weir_store::WaitBounds;

use super::*;
use crate::settings::FlagValues;

fn environment(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn flag(variable: &'static str, value: &str) -> Flags {
    Flags { others: FlagValues([(variable, value.to_owned())].into()), ..Flags::default() }
}

pub(in crate::settings) fn resolve(variables: &[(&str, &str)]) -> Result<Settings, SettingErrors> {
    Settings::resolve(&Flags::default(), &environment(variables))
}

fn resolved(variables: &[(&str, &str)]) -> Settings {
    resolve(variables).expect("valid settings")
}

fn rejected(variables: &[(&str, &str)]) -> String {
    resolve(variables).expect_err("invalid settings").to_string()
}

#[test]
fn the_defaults_are_those_of_envoyproxy_ratelimit() {
    let settings = resolved(&[]);
    assert_eq!((settings.http.port, settings.debug.port), (8080, 6070));
    let everywhere = ListenAddress { host: [0, 0, 0, 0].into(), port: 8081 };
    assert_eq!(settings.grpc.address, GrpcAddress::Tcp(everywhere));
    assert_eq!(settings.grpc.max_age, Some(Duration::from_hours(24)));
    assert_eq!(settings.grpc.max_age_grace, Some(Duration::from_hours(1)));
    assert_eq!(settings.rules.dir, PathBuf::from("config"));
    assert_eq!(settings.limiter.scope, Scope::Descriptor);
    assert!((settings.limiter.near_limit_ratio - 0.8).abs() < f32::EPSILON);
    assert!(settings.response_headers.styles.is_empty());
    assert_eq!(settings.max_counters, 500_000);
    assert_eq!(
        settings.log,
        LogSettings { level: LevelFilter::WARN, format: LogFormat::Text, values: false }
    );
    assert!(settings.statsd.is_none() && settings.prometheus.is_none() && settings.warnings.is_empty());
}

#[test]
fn a_flag_takes_precedence_over_its_variable() {
    let flags = Flags { config: Some("mine".into()), ..flag("GRPC_PORT", "1") };
    let environment = environment(&[("GRPC_PORT", "2"), ("PORT", "3"), ("RUNTIME_ROOT", "/theirs")]);
    let settings = Settings::resolve(&flags, &environment).expect("valid settings");
    let GrpcAddress::Tcp(grpc) = settings.grpc.address else { panic!("no socket is configured") };
    assert_eq!((grpc.port, settings.http.port), (1, 3));
    assert_eq!(settings.rules.dir, PathBuf::from("mine"));
}

#[test]
fn the_path_variables_of_envoyproxy_ratelimit_are_joined() {
    let dir = |variables| resolved(variables).rules.dir;
    assert_eq!(dir(&[("RUNTIME_ROOT", "/data")]), PathBuf::from("/data/config"));
    assert_eq!(
        dir(&[("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "ratelimit")]),
        PathBuf::from("/data/ratelimit/config")
    );
    assert_eq!(
        dir(&[("RUNTIME_SUBDIRECTORY", "ratelimit"), ("RUNTIME_APPDIRECTORY", "rules")]),
        PathBuf::from("/srv/runtime_data/current/ratelimit/rules")
    );
    assert_eq!(dir(&[("RUNTIME_APPDIRECTORY", "rules")]), PathBuf::from("config"));
}

#[test]
fn all_invalid_settings_are_reported_at_once() {
    let errors = rejected(&[
        ("GRPC_PORT", "70000"),
        ("GRPC_MAX_CONNECTION_AGE", "1 day"),
        ("SHADOW_MODE", "yes"),
        ("NEAR_LIMIT_RATIO", "0"),
        ("WEIR_MAX_COUNTERS", "0"),
        ("HOST", "nowhere"),
        ("LIMIT_RESET_HEADER", "a b"),
        ("STATS_FLUSH_INTERVAL", "0"),
    ]);
    let lines: Vec<&str> = errors.lines().map(str::trim_start).collect();
    assert_eq!((lines.len(), lines[0]), (9, "8 invalid settings"), "{errors}");
    for line in [
        "GRPC_PORT is \"70000\", but must be a port from 0 to 65535, where 0 selects a free port",
        "GRPC_MAX_CONNECTION_AGE is \"1 day\", but must be a duration such as 500ms, 10s, 1m, 1h30m or 24h; 0 needs \
         no unit",
    ] {
        assert!(lines.contains(&line), "{line}\n{errors}");
    }
}

#[test]
fn any_other_format_of_the_log_is_text() {
    for (text, format) in [("JSON", LogFormat::Json), ("Text", LogFormat::Text)] {
        let settings = resolved(&[("LOG_FORMAT", text)]);
        assert_eq!((settings.log.format, settings.warnings.len()), (format, 0));
    }
    let settings = resolved(&[("LOG_FORMAT", "logfmt")]);
    assert_eq!(settings.log.format, LogFormat::Text);
    assert_eq!(settings.warnings, ["LOG_FORMAT is \"logfmt\", neither text nor json, so the log is text"]);
    assert_eq!(log_format(&Flags::default(), &environment(&[("LOG_FORMAT", "logfmt")])), LogFormat::Text);
    let flags = flag("LOG_FORMAT", "logfmt");
    let error = Settings::resolve(&flags, &environment(&[])).expect_err("a typing error").to_string();
    assert_eq!(error, "--log-format is \"logfmt\", but must be text or json");
}

#[test]
fn numbers_have_gos_syntax_everywhere() {
    let settings = resolved(&[
        ("GRPC_PORT", "0x1f91"),
        ("PORT", "+8_080"),
        ("WEIR_MAX_COUNTERS", "1_000_000"),
        ("WEIR_WORKERS", "0b11"),
        ("WEIR_MAX_ENTRIES", "0o17"),
        ("WEIR_MAX_DESCRIPTORS", "017"),
        ("WEIR_MAX_BUFFERED_BYTES", "0x10MiB"),
        ("STATSD_HOST", "stats"),
        ("STATSD_PORT", "0x1fbd"),
        ("REDIS_URL", "redis:6379"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0x100000"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "-1"),
    ]);
    let GrpcAddress::Tcp(grpc) = settings.grpc.address else { panic!("no socket is configured") };
    assert_eq!((grpc.port, settings.http.port, settings.grpc.threads), (8081, 8080, 3));
    assert_eq!((settings.max_counters, settings.bounds.request.entries), (1_000_000, 15));
    assert_eq!((settings.bounds.request.descriptors, settings.bounds.buffered), (15, 16 << 20));
    assert_eq!(settings.statsd.map(|statsd| statsd.port), Some(8125));
    assert!(settings.coordination.local_cache);
    let Some(RemoteSettings::Redis(redis)) = settings.shared else { panic!("{:?}", settings.shared) };
    assert_eq!(redis.keys.jitter_seconds, 0);
    for (variable, value) in [("PORT", "-1"), ("PORT", "0x10000"), ("WEIR_WORKERS", "1_"), ("PORT", "08")] {
        assert!(rejected(&[(variable, value)]).starts_with(variable), "{variable}");
    }
}

#[test]
fn times_without_use_stand_for_the_default() {
    let settings = resolved(&[
        ("REDIS_URL", "redis:6379"),
        ("REDIS_STARTUP_INITIAL_INTERVAL", "0"),
        ("REDIS_TIMEOUT", "-1s"),
        ("GRPC_MAX_CONNECTION_AGE", "-1s"),
    ]);
    assert_eq!(
        settings.warnings,
        [
            "REDIS_STARTUP_INITIAL_INTERVAL is not above 0, so the default of 50ms applies",
            "REDIS_TIMEOUT is not above 0, so the default of 10s applies",
            "GRPC_MAX_CONNECTION_AGE is below 0, which counts as 0: there is no maximum",
        ]
    );
    let Some(RemoteSettings::Redis(redis)) = settings.shared else { panic!("{:?}", settings.shared) };
    assert_eq!(redis.main.timeout, Duration::from_secs(10));
    assert_eq!((settings.grpc.max_age, settings.grpc.max_age_grace), (None, Some(Duration::from_hours(1))));
    assert_eq!(resolved(&[("REDIS_STARTUP_INITIAL_INTERVAL", "0")]).warnings, [""; 0], "without a Redis");
    let xds = resolved(&[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "0")]);
    assert_eq!(xds.rules.xds.map(|xds| xds.backoff.initial), Some(Duration::from_secs(10)));
    assert_eq!(xds.warnings.len(), 1, "{:?}", xds.warnings);
    assert!(
        rejected(&[("REDIS_TIMEOUT", "soon"), ("REDIS_URL", "redis:6379")]).contains("a duration such as")
    );
}

#[test]
fn the_level_of_the_log_is_checked_with_the_rest() {
    let errors = rejected(&[("LOG_LEVEL", "loud"), ("PORT", "eighty")]);
    let right = "panic, fatal, error, warn, warning, info, debug or trace";
    assert!(errors.contains(&format!("LOG_LEVEL is \"loud\", but must be {right}")), "{errors}");
    assert!(errors.starts_with("2 invalid settings") && errors.contains("PORT is"), "{errors}");
    assert_eq!(resolved(&[("LOG_LEVEL", "Info")]).log.level, LevelFilter::INFO);
}

#[test]
fn the_ratio_and_the_budget_have_bounds() {
    for ratio in ["0.000001", "0.8", "1"] {
        assert!(resolve(&[("NEAR_LIMIT_RATIO", ratio)]).is_ok(), "{ratio}");
    }
    for ratio in ["0", "-0.5", "1.01", "80", "inf", "NaN", "much"] {
        let error = rejected(&[("NEAR_LIMIT_RATIO", ratio)]);
        let right = "a number above 0 and at most 1, such as 0.8";
        assert_eq!(error, format!("NEAR_LIMIT_RATIO is {ratio:?}, but must be {right}"));
    }
    for budget in ["1ms", "15ms", "1m"] {
        assert!(resolve(&[("WEIR_DECISION_BUDGET", budget)]).is_ok(), "{budget}");
    }
    for budget in ["0", "999us", "60001ms", "24h"] {
        let error = rejected(&[("WEIR_DECISION_BUDGET", budget)]);
        let right = "a duration from 1ms to 1m, such as 15ms";
        assert_eq!(error, format!("WEIR_DECISION_BUDGET is {budget:?}, but must be {right}"));
    }
}

#[test]
fn a_misspelled_variable_is_an_error() {
    for (written, meant) in [
        ("WEIR_SYNC_INTERVALL", "WEIR_SYNC_INTERVAL"),
        ("WEIR_COORDINATON", "WEIR_COORDINATION"),
        ("WEIR_BUDGET", "WEIR_DECISION_BUDGET"),
        ("WEIR_SYNC_INTERVAL_MS", "WEIR_SYNC_INTERVAL"),
        ("WEIR_WORKER", "WEIR_WORKERS"),
        ("WEIR_REDIS_URL", "REDIS_URL"),
        ("WEIR_LOG_LEVEL", "LOG_LEVEL"),
        ("WEIR_CONFIG_TYPE", "CONFIG_TYPE"),
    ] {
        let error = rejected(&[(written, "1s")]);
        let right = format!("unset: there is no such variable; did you mean {meant}?");
        assert_eq!(error, format!("{written} must be {right}"));
    }
    let errors = rejected(&[("WEIR_WORKER", "1"), ("WEIR_STOP_DELY", "1s"), ("PORT", "x")]);
    assert!(errors.starts_with("3 invalid settings"), "{errors}");
}

#[test]
fn other_unknown_variables_with_weirs_prefix_do_not_stop_the_start() {
    let warnings = resolved(&[("WEIR_IMAGE_TAG", "1"), ("WEIR_STOP_DELY", ""), ("OTHER", "1")]).warnings;
    assert_eq!(warnings, ["WEIR_IMAGE_TAG is set, but has no effect: there is no such variable"]);
    // Kubernetes sets these in every pod beside the services `weir` and `weir-workers`
    let links = [
        ("WEIR_SERVICE_HOST", "10.0.0.1"),
        ("WEIR_SERVICE_PORT", "8081"),
        ("WEIR_SERVICE_PORT_GRPC", "8081"),
        ("WEIR_PORT", "tcp://10.0.0.1:8081"),
        ("WEIR_PORT_8081_TCP", "tcp://10.0.0.1:8081"),
        ("WEIR_PORT_8081_TCP_ADDR", "10.0.0.1"),
        ("WEIR_WORKERS_SERVICE_HOST", "10.0.0.1"),
        ("WEIR_WORKERS_PORT", "tcp://10.0.0.1:8081"),
        ("WEIR_WORKERS_PORT_53_UDP_PROTO", "udp"),
    ];
    assert!(resolved(&links).warnings.is_empty());
}

#[test]
fn an_invalid_flag_is_named_as_a_flag() {
    let flags = flag("PORT", "eighty");
    let error = Settings::resolve(&flags, &environment(&[])).expect_err("an invalid port");
    assert!(error.to_string().starts_with("--port is \"eighty\""), "{error}");
}

#[test]
fn settings_for_shared_counts_are_not_ignored() {
    for (variables, expected) in [
        (&[("BACKEND_TYPE", "memcache")][..], "MEMCACHE_HOST_PORT"),
        (&[("BACKEND_TYPE", "postgres")], "must be memory, disk, redis or memcache"),
        (&[("BACKEND_TYPE", "redis")], "REDIS_URL"),
        (&[("REDIS_PERSECOND_URL", "redis:6379")], "together with REDIS_URL"),
    ] {
        let error = rejected(variables);
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
    }
    let shared = resolved(&[("REDIS_URL", "redis:6379"), ("MEMCACHE_HOST_PORT", "cache:11211")]);
    assert!(shared.shared.is_some());
    assert_eq!(shared.warnings, ["MEMCACHE_HOST_PORT is set, but has no effect: counts are kept in Redis"]);
    let settings =
        resolved(&[("BACKEND_TYPE", "memory"), ("REDIS_URL", "redis:6379"), ("REDIS_TLS", "true")]);
    let expected = ["REDIS_URL", "REDIS_TLS"]
        .map(|variable| format!("{variable} is set, but has no effect: counts are kept in memory"));
    assert_eq!(settings.warnings, expected);
    assert!(settings.shared.is_none());
}

#[test]
fn a_data_directory_selects_the_disk() {
    let disk = resolved(&[("WEIR_DATA_DIR", "/var/lib/weir"), ("WEIR_SYNC_INTERVAL", "1s")]);
    assert_eq!(disk.warnings, [""; 0]);
    let disk = disk.disk.expect("it is on");
    assert_eq!((disk.dir, disk.sync), ("/var/lib/weir".into(), DiskSync::Interval));
    assert_eq!((disk.interval, disk.on_damage), (Period::from_secs(1), OnDamage::Refuse));
    let shared = resolved(&[("REDIS_URL", "redis:6379"), ("WEIR_DATA_DIR", "/d")]);
    assert!(shared.disk.is_none());
    assert_eq!(shared.warnings, ["WEIR_DATA_DIR is set, but has no effect: counts are kept in Redis"]);
    let given = [
        ("BACKEND_TYPE", "disk"),
        ("WEIR_DATA_DIR", "/d"),
        ("WEIR_DISK_SYNC", "always"),
        ("WEIR_DISK_DAMAGE", "continue"),
        ("WEIR_DISK_MAX_BYTES", "1GiB"),
        ("REDIS_URL", "redis:6379"),
    ];
    let settings = resolved(&given);
    let expected = "REDIS_URL is set, but has no effect: counts are kept in memory and on disk";
    assert_eq!(settings.warnings, [expected]);
    let disk = settings.disk.expect("it is on");
    assert_eq!(
        (disk.sync, disk.on_damage, disk.max_bytes),
        (DiskSync::Always, OnDamage::Continue, Some(1 << 30))
    );
}

#[test]
fn unsupported_settings_cause_errors_or_warnings() {
    assert!(rejected(&[("CONFIG_TYPE", "XDS")]).contains("must be FILE or GRPC_XDS_SOTW"));
    assert!(resolved(&[("GRPC_SERVER_USE_TLS", "false"), ("CONFIG_TYPE", "FILE")]).warnings.is_empty());
    let warnings = resolved(&[("CACHE_KEY_PREFIX", "a"), ("LOCAL_CACHE_SIZE_IN_BYTES", "1000")]).warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        resolved(&[("TRACING_ENABLED", "false"), ("LOCAL_CACHE_SIZE_IN_BYTES", "0")]).warnings.is_empty()
    );
    let (milliseconds, mapper) =
        (("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "true"), ("PROMETHEUS_MAPPER_YAML", "/conf.yaml"));
    assert!(resolved(&[milliseconds]).warnings.is_empty() && resolved(&[mapper]).warnings.is_empty());
    let warnings = resolved(&[milliseconds, mapper]).warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("its mappings scale response times"), "{warnings:?}");
}

#[test]
fn tls_needs_a_certificate_and_a_key() {
    let error = rejected(&[("GRPC_SERVER_USE_TLS", "true")]);
    assert!(error.contains("GRPC_SERVER_TLS_CERT") && error.contains("GRPC_SERVER_TLS_KEY"), "{error}");
    let files = [("GRPC_SERVER_TLS_CERT", "/c/tls.crt"), ("GRPC_SERVER_TLS_KEY", "/k/tls.key")];
    assert!(resolved(&files).grpc.tls.is_none());
    let with =
        |more: &[(&str, &str)]| resolved(&[&files[..], &[("GRPC_SERVER_USE_TLS", "true")], more].concat());
    let tls = with(&[]).grpc.tls.expect("it is on");
    assert_eq!((tls.certificate, tls.key), ("/c/tls.crt".into(), "/k/tls.key".into()));
    let names = [("GRPC_CLIENT_TLS_SAN", "envoy,spiffe://a/b")];
    let without_ca = with(&names);
    assert_eq!(without_ca.warnings.len(), 1, "{:?}", without_ca.warnings);
    let with_ca = with(&[names[0], ("GRPC_CLIENT_TLS_CACERT", "/ca.crt")]);
    // that of `/json`
    assert!(
        with_ca.warnings.len() == 1 && with_ca.warnings[0].contains("WEIR_JSON"),
        "{:?}",
        with_ca.warnings
    );
    assert_eq!(with_ca.grpc.tls.map(|tls| tls.client_names.len()), Some(2));
    // a variable of Envoy Gateway that neither service has
    assert!(with(&[("GRPC_SERVER_TLS_CA_CERT", "/ca.crt")]).warnings.is_empty());
}

#[test]
fn rules_may_come_from_a_control_plane() {
    const TYPE: (&str, &str) = ("CONFIG_TYPE", "GRPC_XDS_SOTW");
    let xds = |more: &[(&str, &str)]| resolved(&[&[TYPE], more].concat()).rules.xds.expect("a control plane");
    let default = xds(&[]);
    assert_eq!(default.server, Address::Tcp("localhost".into(), 18000));
    assert_eq!((&*default.node_id, default.max_message), ("default", 4 << 20));
    assert_eq!(default.connect_retry, Duration::from_secs(3));
    let backoff = XdsBackoff { initial: Duration::from_secs(10), max: Duration::from_mins(1), jitter: 0.5 };
    assert_eq!(default.backoff, backoff);
    assert!(default.tls.is_none() && default.headers.is_empty());
    let exact = xds(&[("XDS_CLIENT_BACKOFF_JITTER", "false"), ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.3")]);
    assert_eq!(exact.backoff, XdsBackoff { jitter: 0.0, ..backoff });
    // the multiplier of envoyproxy/ratelimit
    let double = xds(&[("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "2")]).backoff;
    assert_eq!(double, XdsBackoff { jitter: 1.0, ..backoff });
    let long = xds(&[("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "2m")]).backoff;
    assert_eq!(long.max, Duration::from_mins(2));
    assert_eq!(xds(&[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "0")]).max_message, 4 << 20);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let metadata = xds(&[("CONFIG_GRPC_XDS_NODE_METADATA", "a=b=c,d=")]).node_metadata;
    assert_eq!(metadata, [pair("a", "b=c"), pair("d", "")]);
    let odd = resolved(&[TYPE, ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,secret,=c,,d=e")]);
    assert_eq!(odd.rules.xds.expect("a control plane").node_metadata, [pair("a", "b"), pair("d", "e")]);
    let warning = |part| {
        format!(
            "part {part} of CONFIG_GRPC_XDS_NODE_METADATA is ignored: it is no pair of a name and a value, such as env=prod"
        )
    };
    assert_eq!(odd.warnings, [warning(2), warning(3)]);
    assert!(!default.merge_domains && xds(&[("MERGE_DOMAIN_CONFIG", "true")]).merge_domains);
    assert_eq!(default.response_timeout, Duration::from_secs(30));
    let tls = xds(&[
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/k"),
    ]);
    assert_eq!(tls.tls.expect("it is on").files.client, Some(("/c".into(), "/k".into())));
    for (variable, value, expected) in [
        ("CONFIG_GRPC_XDS_SERVER_URL", "http://a", "host:port"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a b:c", "headers such as"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "token-bin:c", "headers such as"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "-1", "0 or more"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "4MB", "a number of bytes"),
        ("WEIR_XDS_RESPONSE_TIMEOUT", "0", "above 0"),
        ("WEIR_XDS_ALGORITHM", "leaky", "fixed_window, sliding_window or token_bucket"),
    ] {
        let error = rejected(&[TYPE, (variable, value)]);
        assert!(error.starts_with(variable) && error.contains(expected), "{error}");
    }
    let one = [TYPE, ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"), ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c")];
    assert!(rejected(&one).contains("together with CONFIG_GRPC_XDS_CLIENT_TLS_KEY"));
    let files = resolved(&[("WEIR_XDS_ALGORITHM", "sliding_window"), ("CONFIG_GRPC_XDS_NODE_ID", "x")]);
    assert!(files.rules.xds.is_none() && files.warnings.len() == 2, "{:?}", files.warnings);
}

#[test]
fn a_maximum_age_of_zero_means_no_limit() {
    let settings = resolved(&[("GRPC_MAX_CONNECTION_AGE", "0"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "0s")]);
    assert_eq!((settings.grpc.max_age, settings.grpc.max_age_grace), (None, None));
}

#[test]
fn statsd_is_enabled_by_its_switches_or_its_host() {
    assert!(resolved(&[("USE_STATSD", "true")]).statsd.is_some_and(|statsd| statsd.host == "localhost"));
    let named = resolved(&[("STATSD_HOST", "stats"), ("EXTRA_TAGS", "env:prod")])
        .statsd
        .expect("the host enables it");
    assert_eq!((named.host.as_str(), named.port, named.protocol), ("stats", 8125, Protocol::Tcp));
    assert_eq!(named.tags["env"], "prod");
    assert!(!named.gauges);
    assert!(resolved(&[("STATSD_HOST", "stats"), ("USE_STATSD", "false")]).statsd.is_none());
    assert!(resolved(&[("STATSD_HOST", "stats"), ("DISABLE_STATS", "true")]).statsd.is_none());
    let dog = resolved(&[("USE_DOG_STATSD", "true"), ("USE_STATSD", "false")]).statsd;
    assert!(dog.is_some_and(|statsd| statsd.dialect == Dialect::Dog && statsd.protocol == Protocol::Udp));
}

#[test]
fn modes_and_headers_are_resolved() {
    let settings = resolved(&[
        ("SHADOW_MODE", "1"),
        ("QUOTA_MODE", "T"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RESET_HEADER", "x-reset"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
    ]);
    let modes = &settings.limiter.modes;
    assert!(modes.shadow && modes.quota && modes.metadata);
    let names = HeaderNames { reset: "x-reset".into(), ..HeaderNames::default() };
    assert_eq!(settings.response_headers.styles, [HeaderStyle::LimitRemainingReset(names)]);
    assert_eq!(settings.limiter.scope, Scope::Request);
}

#[test]
fn response_headers_have_the_chosen_styles() {
    let styles = |text| resolved(&[("WEIR_RESPONSE_HEADERS", text)]).response_headers.styles;
    assert_eq!(styles("ietf, retry-after"), [HeaderStyle::Ietf, HeaderStyle::RetryAfter]);
    assert_eq!(styles("x-ratelimit"), [HeaderStyle::LimitRemainingReset(HeaderNames::x_ratelimit())]);
    assert_eq!(styles("reference"), [HeaderStyle::LimitRemainingReset(HeaderNames::default())]);
    let error = rejected(&[("WEIR_RESPONSE_HEADERS", "ietf,x-rate")]);
    assert!(error.contains("any of reference, x-ratelimit, ietf and retry-after"), "{error}");
    // for the upstream, beside those for the response
    let for_request = [
        ("LIMIT_REQUEST_HEADERS_ENABLED", "true"),
        ("LIMIT_REQUEST_LIMIT_HEADER", "x-upstream-limit"),
        ("WEIR_RESPONSE_HEADERS", "ietf"),
    ];
    let names = HeaderNames { limit: "x-upstream-limit".into(), ..HeaderNames::default() };
    assert_eq!(
        resolved(&for_request).response_headers.styles,
        [HeaderStyle::Ietf, HeaderStyle::LimitRemainingResetForRequest(names)]
    );
}

#[test]
fn variables_of_later_versions_of_envoyproxy_ratelimit_say_what_weir_does() {
    let variables = [
        ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "true"),
        ("MAX_CONCURRENT_REQUESTS", "32"),
        ("REDIS_OP_TIMEOUT", "1s"),
        ("REDIS_AUTH_FILE", "/secret"),
        ("ENABLE_NEGATIVE_HITS", "false"),
    ];
    let settings = resolved(&variables);
    assert!(!settings.dots_are_replaced);
    assert_eq!(settings.warnings.len(), 4, "{:?}", settings.warnings);
    for (variable, _) in &variables[..4] {
        let begin = format!("{variable} is set, but has no effect: ");
        assert!(settings.warnings.iter().any(|warning| warning.starts_with(&begin)), "{variable}");
    }
    assert!(resolved(&[("SANITIZE_DESCRIPTOR_METRIC_DOTS", "1")]).dots_are_replaced);
}

#[test]
fn prometheus_has_its_own_port_if_enabled() {
    let prometheus = resolved(&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0")]).prometheus;
    let loopback = ListenAddress { host: [127, 0, 0, 1].into(), port: 0 };
    assert_eq!(prometheus, Some(PrometheusSettings { address: loopback, path: "/metrics".into() }));
    assert!(rejected(&[("PROMETHEUS_ADDR", "9090")]).contains("such as :9090"));
}

#[test]
fn bounds_are_resolved_and_have_ranges() {
    let defaults = resolved(&[]);
    assert_eq!(defaults.bounds, Bounds::default());
    assert_eq!(defaults.coordination.max_counter_bytes, 128 << 20);
    let settings = resolved(&[
        ("WEIR_MAX_CONNECTIONS", "200"),
        ("WEIR_MAX_BUFFERED_BYTES", "1GiB"),
        ("WEIR_MAX_DESCRIPTORS", "5"),
        ("WEIR_MAX_ENTRIES", "7"),
        ("WEIR_REQUEST_TIMEOUT", "1m"),
        ("WEIR_SEND_TIMEOUT", "100ms"),
        ("WEIR_MAX_COUNTER_BYTES", "33554432"),
        ("WEIR_MAX_WAITERS", "9"),
        ("WEIR_MAX_WAITERS_PER_KEY", "8"),
        ("WEIR_MAX_WAIT", "2s"),
    ]);
    let waits = WaitBounds { per_key: 8, total: 9, longest: Period::from_secs(2) };
    assert_eq!((defaults.waits, settings.waits), (WaitBounds::default(), waits));
    let request = RequestBounds { descriptors: 5, entries: 7 };
    let (arrival, sending) = (Duration::from_mins(1), Duration::from_millis(100));
    assert_eq!(settings.bounds, Bounds { connections: 200, buffered: 1 << 30, arrival, sending, request });
    assert_eq!(settings.coordination.max_counter_bytes, 32 << 20);
    for (variable, value, expected) in [
        ("WEIR_MAX_CONNECTIONS", "0", "a number of connections, from 1 to 1000000"),
        ("WEIR_MAX_BUFFERED_BYTES", "1MiB", "a size of at least 16MiB"),
        ("WEIR_MAX_BUFFERED_BYTES", "1MB", "such as 100663296, 96MiB or 1GiB"),
        ("WEIR_MAX_DESCRIPTORS", "many", "a number of descriptors, from 1 to 1000000"),
        ("WEIR_MAX_ENTRIES", "1000001", "a number of entries, from 1 to 1000000"),
        ("WEIR_REQUEST_TIMEOUT", "2h", "a duration from 100ms to 1h, such as 30s"),
        ("WEIR_SEND_TIMEOUT", "0", "a duration from 100ms to 1h, such as 30s"),
        ("WEIR_MAX_COUNTER_BYTES", "1", "a size of at least 16MiB"),
        ("WEIR_MAX_WAITERS", "0", "a number of callers, from 1 to 1000000"),
        ("WEIR_MAX_WAITERS_PER_KEY", "all", "a number of callers, from 1 to 1000000"),
        ("WEIR_MAX_WAIT", "2h", "a duration from 1ms to 1h, such as 60s"),
    ] {
        let error = rejected(&[(variable, value)]);
        assert!(error.starts_with(variable) && error.contains(expected), "{error}");
    }
}
