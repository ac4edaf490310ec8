//! The variables whose values an error may show. All others may hold passwords, also by mistake: a URL with one, a
//! header with a token, or a password in a variable that does not exist.

/// Switches, numbers, times, choices, names of headers, or addresses to listen on.
const HARMLESS: &[&str] = &[
    "BACKEND_TYPE",
    "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS",
    "CONFIG_TYPE",
    "DEBUG_HOST",
    "DEBUG_PORT",
    "DISABLE_STATS",
    "EXPIRATION_JITTER_MAX_SECONDS",
    "FORCE_START_WITHOUT_INITIAL_CONFIG",
    "GRPC_CLIENT_TLS_SAN",
    "GRPC_HOST",
    "GRPC_MAX_CONNECTION_AGE",
    "GRPC_MAX_CONNECTION_AGE_GRACE",
    "GRPC_PORT",
    "GRPC_SERVER_USE_TLS",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "HOST",
    "LIMIT_LIMIT_HEADER",
    "LIMIT_REMAINING_HEADER",
    "LIMIT_REQUEST_HEADERS_ENABLED",
    "LIMIT_REQUEST_LIMIT_HEADER",
    "LIMIT_REQUEST_REMAINING_HEADER",
    "LIMIT_REQUEST_RESET_HEADER",
    "LIMIT_RESET_HEADER",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "MEMCACHE_MAX_IDLE_CONNS",
    "MEMCACHE_SRV_REFRESH",
    "MEMCACHE_TLS",
    "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
    "MERGE_DOMAIN_CONFIG",
    "NEAR_LIMIT_RATIO",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_INSECURE",
    "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION",
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
    "OTEL_EXPORTER_OTLP_METRICS_INSECURE",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
    "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TRACES_INSECURE",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_METRICS_EXPORTER",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_METRIC_EXPORT_TIMEOUT",
    "PORT",
    "PROMETHEUS_ADDR",
    "PROMETHEUS_PATH",
    "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
    "QUOTA_MODE",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "REDIS_PERSECOND",
    "REDIS_PERSECOND_SOCKET_TYPE",
    "REDIS_PERSECOND_TIMEOUT",
    "REDIS_PERSECOND_TLS",
    "REDIS_PERSECOND_TYPE",
    "REDIS_SOCKET_TYPE",
    "REDIS_STARTUP_INITIAL_INTERVAL",
    "REDIS_STARTUP_MAX_ELAPSED_TIME",
    "REDIS_STARTUP_MAX_INTERVAL",
    "REDIS_TIMEOUT",
    "REDIS_TLS",
    "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
    "REDIS_TYPE",
    "RESPONSE_DYNAMIC_METADATA",
    "RUNTIME_IGNOREDOTFILES",
    "RUNTIME_WATCH_ROOT",
    "SANITIZE_DESCRIPTOR_METRIC_DOTS",
    "SHADOW_MODE",
    "STATSD_PORT",
    "STATSD_PROTOCOL",
    "STATS_FLUSH_INTERVAL",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "TRACING_ENABLED",
    "TRACING_EXPORTER_PROTOCOL",
    "TRACING_SAMPLING_RATE",
    "USE_DOG_STATSD",
    "USE_PROMETHEUS",
    "USE_STATSD",
    "WEIR_COORDINATION",
    "WEIR_DECISION_BUDGET",
    "WEIR_DISK_DAMAGE",
    "WEIR_DISK_MAX_BYTES",
    "WEIR_DISK_SYNC",
    "WEIR_HOT_KEYS",
    "WEIR_JSON",
    "WEIR_LOG_REJECTIONS",
    "WEIR_LOG_VALUES",
    "WEIR_MAX_BUFFERED_BYTES",
    "WEIR_MAX_CONNECTIONS",
    "WEIR_MAX_COUNTERS",
    "WEIR_MAX_COUNTER_BYTES",
    "WEIR_MAX_DESCRIPTORS",
    "WEIR_MAX_ENTRIES",
    "WEIR_MAX_WAIT",
    "WEIR_MAX_WAITERS",
    "WEIR_MAX_WAITERS_PER_KEY",
    "WEIR_ON_STORE_FAILURE",
    "WEIR_REDIS_RESET",
    "WEIR_REDIS_TLS",
    "WEIR_REQUEST_TIMEOUT",
    "WEIR_RESPONSE_HEADERS",
    "WEIR_RULE_METADATA",
    "WEIR_SEND_TIMEOUT",
    "WEIR_STATSD_GAUGES",
    "WEIR_STOP_DELAY",
    "WEIR_STOP_TIMEOUT",
    "WEIR_SYNC_INTERVAL",
    "WEIR_TRACING_DESCRIPTOR_VALUES",
    "WEIR_UNAMBIGUOUS_KEYS",
    "WEIR_WORKERS",
    "WEIR_XDS_ALGORITHM",
    "WEIR_XDS_RESPONSE_TIMEOUT",
    "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
    "XDS_CLIENT_BACKOFF_JITTER",
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
    "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
    "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
];

/// Flags are in the list of processes anyway.
pub(super) fn is_harmless(name: &str) -> bool {
    name.starts_with("--") || HARMLESS.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        collections::{BTreeMap, BTreeSet},
    };

    use super::*;
    use crate::settings::{Environment, Flags, Settings};

    const SECRET: &str = "s3cret";

    /// Variables that have others read.
    const SETTINGS: [&[(&str, &str)]; 7] = [
        &[],
        &[("REDIS_URL", "redis:1"), ("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "redis:2")],
        &[("REDIS_URL", "main,redis:1"), ("REDIS_TYPE", "SENTINEL")],
        &[("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", "memcached:1")],
        &[("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", "/data"), ("WEIR_REDIS_PORT", "true")],
        &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")],
        &[
            ("TRACING_ENABLED", "true"),
            ("OTEL_METRICS_EXPORTER", "otlp"),
            ("USE_DOG_STATSD", "true"),
            ("USE_DOG_STATSD_MOGRIFIERS", "A"),
            ("DOG_STATSD_MOGRIFIER_A_PATTERN", "a"),
            ("DOG_STATSD_MOGRIFIER_A_NAME", "b"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "/cert"),
            ("GRPC_SERVER_TLS_KEY", "/key"),
        ],
    ];

    struct Recording(BTreeMap<String, String>, RefCell<BTreeSet<String>>);

    impl Environment for Recording {
        fn get(&self, name: &str) -> Option<String> {
            self.1.borrow_mut().insert(name.to_owned());
            self.0.get(name).cloned()
        }

        fn names(&self) -> Vec<String> {
            self.0.keys().cloned().collect()
        }
    }

    fn table(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn variables_that_are_read() -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for settings in SETTINGS {
            let environment = Recording(table(settings), RefCell::default());
            let resolved = Settings::resolve(&Flags::default(), &environment);
            assert!(resolved.is_ok(), "{settings:?}: {resolved:?}");
            all.append(&mut environment.1.borrow_mut());
        }
        all
    }

    #[test]
    fn no_message_has_a_value_that_may_be_a_secret() {
        let read = variables_that_are_read();
        let unknown = ["WEIR_REDIS_AUTH", "WEIR_REDIS_URL", "WEIR_PASSWORD", "WEIR_STOP_DELY"];
        let names = read.iter().map(String::as_str).chain(unknown).filter(|name| !is_harmless(name));
        let names: Vec<&str> = names.collect();
        assert!(names.len() > 50, "{names:?}");
        let values = [
            SECRET,
            "s3cret, s3cret",
            "u:s3cret@h:1",
            "host:1:s3cret",
            "redis://:s3cret",
            "http://u:s3cret@h:1",
            "a=b,s3cret:c",
            "a:b,s3cret=c",
            "-----BEGIN s3cret\nx",
        ];
        for name in names {
            for settings in SETTINGS {
                for value in values {
                    let mut environment = table(settings);
                    environment.insert(name.to_owned(), value.to_owned());
                    let messages = match Settings::resolve(&Flags::default(), &environment) {
                        Ok(settings) => settings.warnings.join("\n"),
                        Err(errors) => format!("{errors}\n{errors:?}"),
                    };
                    assert!(!messages.contains(SECRET), "{name}={value}: {messages}");
                }
            }
        }
    }

    #[test]
    fn every_harmless_variable_is_read() {
        let read = variables_that_are_read();
        for name in HARMLESS {
            assert!(read.contains(*name), "{name}");
        }
    }
}
