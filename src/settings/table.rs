//! Every variable: its default, its flag, what it means, and whether messages may have its value. The help of
//! `weir serve`, its flags, suggestions for unknown names and the table in `docs/operations.md` are made of it.

use std::{collections::BTreeMap, iter, sync::LazyLock};

use super::stores::{self, STORES};

/// A variable, or several that differ in a part of their names.
pub(super) struct Setting {
    /// `[A_|B_]` is nothing, `A_` or `B_`; `*` at the end is anything.
    pub(super) names: &'static str,
    /// As it would be written. Described if other settings decide.
    pub(super) default: &'static str,
    /// In Markdown.
    pub(super) meaning: &'static str,
    /// False if it may hold a password, also by mistake: a URL with one, or a header with a token.
    pub(super) is_shown: bool,
    /// The names of its flag and of the flag's value.
    pub(super) flag: Option<(&'static str, &'static str)>,
}

/// For switches, numbers, times, choices, names of headers, or addresses to listen on.
pub(super) const fn shown(names: &'static str, default: &'static str) -> Setting {
    Setting { names, default, meaning: "", is_shown: true, flag: None }
}

pub(super) const fn hidden(names: &'static str, default: &'static str) -> Setting {
    Setting { is_shown: false, ..shown(names, default) }
}

pub(super) const fn switch(names: &'static str) -> Setting {
    shown(names, "false")
}

/// The section of variables that have no effect. Their meanings say why.
pub(super) const WITHOUT_EFFECT: &str = "Without effect";

/// The sections of the help before those of the stores that instances share.
#[rustfmt::skip]
const FIRST: &[(&str, &[Setting])] = &[
    ("Rules", &[
        hidden("RUNTIME_ROOT", ""),
        hidden("RUNTIME_SUBDIRECTORY", ""),
        hidden("RUNTIME_APPDIRECTORY", "config"),
        switch("RUNTIME_IGNOREDOTFILES"),
        hidden("WEIR_TABLES_DIR", "")
            .means("directory of [tables](rules.md#tables) besides that of the rules, watched for changes"),
        shown("WEIR_MAX_TABLE_BYTES", "256MiB")
            .means("most bytes of all tables, those that are being loaded included, at least 1MiB"),
        shown("RUNTIME_WATCH_ROOT", "true").means("no effect, since weir always watches it"),
        switch("MERGE_DOMAIN_CONFIG"),
        shown("WEIR_TZDIR", "built in")
            .means("directory of the time zones of [calendars](rules.md#calendars), such as `/usr/share/zoneinfo`"),
        switch("FORCE_START_WITHOUT_INITIAL_CONFIG"),
        switch("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
        shown("CONFIG_TYPE", "FILE").means("or `GRPC_XDS_SOTW` for rules from a control plane"),
    ]),
    ("Listening", &[
        shown("GRPC_HOST", "0.0.0.0").flag("grpc-host", "IP").means("interface of the gRPC server"),
        shown("GRPC_PORT", "8081").flag("grpc-port", "PORT")
            .means("port of the gRPC server; 0 selects a free port"),
        hidden("GRPC_UDS", "").flag("grpc-uds", "PATH")
            .means("unix socket of the gRPC server, instead of interface and port"),
        shown("HOST", "0.0.0.0").flag("host", "IP")
            .means("interface of the HTTP server: /json, /healthcheck, /metrics"),
        shown("PORT", "8080").flag("port", "PORT").means("port of the HTTP server"),
        shown("DEBUG_HOST", "0.0.0.0").flag("debug-host", "IP").means("interface of the debug pages"),
        shown("DEBUG_PORT", "6070").flag("debug-port", "PORT").means("port of the debug pages"),
        shown("GRPC_MAX_CONNECTION_AGE", "24h"),
        shown("GRPC_MAX_CONNECTION_AGE_GRACE", "1h"),
        shown("WEIR_JSON", "on")
            .means("who may use [`/json`, `/v1/acquire` and `/v1/release`](security.md#json): `on`, `off`, `loopback`. Off if \
                gRPC clients need certificates"),
        shown("WEIR_WORKERS", "one per core").means("gRPC threads, 1 to 1024"),
        hidden("WEIR_REDIS_PORT", "off")
            .means("port of [Redis' protocol](redis-protocol.md): `true` for 9049, or a number; 0 selects a free port"),
    ]),
    ("Admin API", &[
        shown("WEIR_ADMIN", "read on this host, else off")
            .means("what may be done [without a token](security.md#the-admin-api), and the most that is allowed: `off`, \
                `read`, `full`"),
        hidden("WEIR_ADMIN_TOKEN_FILE", "").means("file of tokens, lines of `name:level:token`, watched for changes"),
        shown("WEIR_ADMIN_HOSTS", "").means("further names of the debug port, which its `Host` and `Origin` may be"),
        switch("DEBUG_TLS").means("encrypts the debug port with gRPC's certificates, and demands those of clients if gRPC does"),
        switch("WEIR_ADMIN_PLAIN").means("takes tokens of other hosts without TLS"),
        hidden("WEIR_TOKEN_KEY_FILE", "")
            .means("file of keys that sign [tokens of tenants](security.md#tenants), one a line, watched for changes"),
        hidden("WEIR_TOKEN_REVOKED_FILE", "").means("file of tokens that are valid no more, a `jti` a line, watched"),
    ]),
    ("Redis port", &[
        shown("WEIR_REDIS_HOST", "0.0.0.0").means("interface of this port"),
        hidden("WEIR_REDIS_AUTH", "").means("password of this port, or `user:password`"),
        shown("WEIR_REDIS_TLS", "as gRPC").means("encrypts this port with gRPC's certificates"),
        switch("WEIR_REDIS_RESET").means("allows `WEIR.RESET`"),
    ]),
    ("TLS", &[
        switch("GRPC_SERVER_USE_TLS"),
        hidden("GRPC_SERVER_TLS_CERT", ""),
        hidden("GRPC_SERVER_TLS_KEY", ""),
        hidden("GRPC_CLIENT_TLS_CACERT", "").means("clients need a certificate"),
        shown("GRPC_CLIENT_TLS_SAN", "").means("DNS names or URIs, of which they need one"),
    ]),
    ("Replies", &[
        switch("SHADOW_MODE"),
        switch("QUOTA_MODE"),
        switch("RESPONSE_DYNAMIC_METADATA"),
        switch("LIMIT_RESPONSE_HEADERS_ENABLED"),
        switch("LIMIT_REQUEST_HEADERS_ENABLED"),
        shown("LIMIT_[REQUEST_]LIMIT_HEADER", "RateLimit-Limit"),
        shown("LIMIT_[REQUEST_]REMAINING_HEADER", "RateLimit-Remaining"),
        shown("LIMIT_[REQUEST_]RESET_HEADER", "RateLimit-Reset"),
        switch("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"),
        shown("NEAR_LIMIT_RATIO", "0.8"),
        shown("WEIR_RESPONSE_HEADERS", "")
            .means("list of [headers](rules.md#headers): `reference`, `x-ratelimit`, `ietf`, `retry-after`"),
        switch("WEIR_RULE_METADATA").means("sends the rejecting rule to Envoy as `rejected_by`"),
    ]),
    ("Store", &[
        stores::BACKEND_TYPE,
        shown("WEIR_MAX_COUNTERS", "500000").flag("max-counters", "N")
            .means("most [counters](#memory) in memory, at least 1"),
        shown("WEIR_MAX_COUNTER_BYTES", "128MiB")
            .means("most bytes of names of counters with a shared store, at least 16MiB; the longest are evicted first"),
        hidden("CACHE_KEY_PREFIX", ""),
        shown("EXPIRATION_JITTER_MAX_SECONDS", "300"),
        switch("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
        switch("WEIR_UNAMBIGUOUS_KEYS")
            .means("[unambiguous keys](coordination.md#unambiguous-keys) for rules in envoyproxy/ratelimit's spelling"),
    ]),
    ("Instances", &[
        shown("WEIR_COORDINATION", "auto")
            .means("[mode](coordination.md) of rules that set none: `auto`, `local`, `interval`, `lease`, `strict`, \
                `split`"),
        shown("WEIR_SYNC_INTERVAL", "100ms")
            .means("`interval` and `auto`: time between syncs of a counter near its limit. On disk: between writes. \
                Above 0"),
        shown("WEIR_DECISION_BUDGET", "15ms")
            .means("longest wait of a decision for Redis, Memcached or the disk, 1ms to 1m. Set at least two round \
                trips, and less than Envoy's timeout (20 ms)"),
        shown("WEIR_ON_STORE_FAILURE", "local").means("decision after that time: `local`, `allow`, `deny`"),
        shown("LOCAL_CACHE_SIZE_IN_BYTES", "0").means("0 disables the cache, any other size enables it"),
    ]),
];

/// Those after the stores that instances share.
#[rustfmt::skip]
const OTHERS: &[(&str, &[Setting])] = &[
    ("Disk", &[
        hidden("WEIR_DATA_DIR", "").means("directory of [counters on disk](durability.md#settings)"),
        shown("WEIR_DISK_SYNC", "interval")
            .means("[when changes are durable](durability.md#what-may-be-lost): `interval`, `always`, `os`"),
        shown("WEIR_DISK_DAMAGE", "refuse")
            .means("with [damaged files](durability.md#damaged-files): `refuse` to start, or `continue` without the \
                lost data"),
        shown("WEIR_DISK_MAX_BYTES", "no limit")
            .means("largest size of the directory, at least 256MiB ([a full disk](durability.md#a-full-disk))"),
    ]),
    ("Limits", &[
        shown("WEIR_MAX_CONNECTIONS", "4096").means("most connections, 1 to 1000000"),
        shown("WEIR_MAX_BUFFERED_BYTES", "96MiB")
            .means("most bytes of unfinished requests and unread responses, at least 16MiB"),
        shown("WEIR_MAX_DESCRIPTORS", "10000").means("most descriptors of a request, 1 to 1000000"),
        shown("WEIR_MAX_ENTRIES", "50000").means("most entries of all descriptors of a request, 1 to 1000000"),
        shown("WEIR_REQUEST_TIMEOUT", "30s").means("time for a request to arrive, 100ms to 1h"),
        shown("WEIR_SEND_TIMEOUT", "20s").means("time for a client to read, 100ms to 1h"),
        shown("WEIR_MAX_WAIT", "60s").means("longest wait of a [caller](waiting.md), 1ms to 1h"),
        shown("WEIR_MAX_WAITERS", "1000000").means("most waiting callers, 1 to 1000000"),
        shown("WEIR_MAX_WAITERS_PER_KEY", "100000").means("most waiting callers for one key, 1 to 1000000"),
    ]),
    ("Log", &[
        shown("LOG_LEVEL", "warn").flag("log-level", "LEVEL")
            .means("minimum level of log messages: trace, debug, info, warn or error"),
        shown("LOG_FORMAT", "text").flag("log-format", "FORMAT").means("format of the log: text or json"),
        shown("WEIR_LOG_REJECTIONS", "sampled")
            .means("[rejections in the log](how-to.md#learn-why-a-request-was-rejected): `sampled` is the first of \
                each rule and minute; `all`, `off`"),
        switch("WEIR_LOG_VALUES").means("these lines have descriptor values"),
        shown("WEIR_HOT_KEYS", "shown")
            .means("values on [`/hot`](how-to.md#find-a-hot-key): `shown`, `masked`; `off` disables the page"),
        shown("WEIR_RECORD", "off")
            .means("time for which [requests are kept](replay.md), 1s to 24h, such as `15m`; `off` until somebody asks \
                for a recording"),
        shown("WEIR_RECORD_BYTES", "64MiB").means("most memory for them, 16MiB to 64MiB"),
    ]),
    ("Stats", &[
        switch("DISABLE_STATS"),
        shown("USE_STATSD", ""),
        hidden("STATSD_HOST", "localhost"),
        shown("STATSD_PORT", "8125"),
        shown("STATSD_PROTOCOL", "tcp"),
        switch("USE_DOG_STATSD"),
        hidden("USE_DOG_STATSD_MOGRIFIERS", ""),
        hidden("DOG_STATSD_MOGRIFIER_*", ""),
        hidden("EXTRA_TAGS", ""),
        shown("STATS_FLUSH_INTERVAL", "10s"),
        switch("SANITIZE_DESCRIPTOR_METRIC_DOTS"),
        switch("USE_PROMETHEUS"),
        shown("PROMETHEUS_ADDR", ":9090"),
        shown("PROMETHEUS_PATH", "/metrics"),
        hidden("PROMETHEUS_MAPPER_YAML", ""),
        switch("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"),
        switch("WEIR_STATSD_GAUGES").means("sends gauges to StatsD, too"),
    ]),
    ("Traces", &[
        switch("TRACING_ENABLED"),
        shown("TRACING_EXPORTER_PROTOCOL", "").means("`http` or `grpc`"),
        shown("TRACING_SAMPLING_RATE", "1"),
        hidden("TRACING_SERVICE_NAME", "RateLimit"),
        hidden("TRACING_SERVICE_NAMESPACE", ""),
        hidden("TRACING_SERVICE_INSTANCE_ID", ""),
        shown("OTEL_BSP_MAX_QUEUE_SIZE", "2048"),
        shown("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512"),
        shown("OTEL_BSP_SCHEDULE_DELAY", "5000"),
        shown("OTEL_BSP_EXPORT_TIMEOUT", "30000"),
        switch("WEIR_TRACING_DESCRIPTOR_VALUES").means("adds descriptor values to [traces](tracing.md)"),
    ]),
    ("Metrics", &[
        shown("OTEL_METRICS_EXPORTER", "none").means("`otlp` sends metrics to an OpenTelemetry collector"),
        shown("OTEL_METRIC_EXPORT_INTERVAL", "60000"),
        shown("OTEL_METRIC_EXPORT_TIMEOUT", "30000"),
        shown("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "cumulative"),
        shown("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", ""),
    ]),
    ("Collector", &[
        hidden("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]ENDPOINT", ""),
        hidden("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]HEADERS", ""),
        shown("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]PROTOCOL", "http/protobuf"),
        shown("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]COMPRESSION", "none"),
        shown("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]TIMEOUT", "10000"),
        shown("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]INSECURE", "false"),
        hidden("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]CERTIFICATE", ""),
        hidden("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]CLIENT_CERTIFICATE", ""),
        hidden("OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]CLIENT_KEY", ""),
        hidden("OTEL_SERVICE_NAME", ""),
        hidden("OTEL_RESOURCE_ATTRIBUTES", ""),
    ]),
    ("xDS", &[
        hidden("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
        hidden("CONFIG_GRPC_XDS_NODE_ID", "default"),
        hidden("CONFIG_GRPC_XDS_NODE_METADATA", ""),
        hidden("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", ""),
        switch("CONFIG_GRPC_XDS_SERVER_USE_TLS"),
        hidden("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ""),
        hidden("CONFIG_GRPC_XDS_SERVER_TLS_SAN", ""),
        hidden("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", ""),
        hidden("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", ""),
        shown("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s"),
        shown("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s"),
        shown("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s"),
        shown("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5"),
        shown("XDS_CLIENT_BACKOFF_JITTER", "true"),
        shown("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "0").means("0 is 4 MiB"),
        shown("WEIR_XDS_ALGORITHM", "")
            .means("algorithm of [rules from a control plane](#rules-from-a-control-plane): `fixed_window`, \
                `sliding_window`, `token_bucket`"),
        hidden("WEIR_XDS_DEFAULTS", "").means("file with defaults of these rules, watched for changes"),
        shown("WEIR_XDS_RESPONSE_TIMEOUT", "30s").means("time for the control plane's first answer, above 0"),
    ]),
    ("Stopping", &[
        shown("WEIR_STOP_DELAY", "1s").flag("stop-delay", "DURATION")
            .means("time to serve after health checks start to fail, when [stopping](#stopping)"),
        shown("WEIR_STOP_TIMEOUT", "30s").flag("stop-timeout", "DURATION")
            .means("time that open requests may then take before they are aborted"),
    ]),
    (WITHOUT_EFFECT, &[
        hidden("REDIS_[PERSECOND_]POOL_SIZE", "").means("each server has one multiplexed connection"),
        hidden("REDIS_[PERSECOND_]POOL_ON_EMPTY_BEHAVIOR", "").means("each server has one multiplexed connection"),
        hidden("REDIS_[PERSECOND_]PIPELINE_WINDOW", "").means("concurrent commands are pipelined without a wait"),
        hidden("REDIS_[PERSECOND_]PIPELINE_LIMIT", "").means("concurrent commands are pipelined without a wait"),
        hidden("REDIS_[PERSECOND_]CLUSTER_PIPELINE_PARALLELISM", "")
            .means("the nodes of a cluster are queried in parallel"),
        hidden("MEMCACHE_MAX_IDLE_CONNS", "").means("each server has one multiplexed connection"),
        // of later versions of envoyproxy/ratelimit, and of changes that are proposed there
        hidden("REDIS_[PERSECOND_]CLOSE_CONNECTION_ON_READONLY_ERROR", "")
            .means("weir always replaces the connection to a server that has become a replica"),
        hidden("REDIS_[PERSECOND_]OP_TIMEOUT", "")
            .means("WEIR_DECISION_BUDGET bounds the wait of a decision, and REDIS_TIMEOUT every command"),
        hidden("REDIS_AUTH_FILE", "").means("set REDIS_AUTH, or give it as a credential of systemd"),
        hidden("REDIS_AWS_IAM_AUTH", "").means("weir has no login by AWS; set REDIS_AUTH to the password of a user"),
        hidden("GRPC_MAX_CONCURRENT_STREAMS", "").means("a connection has at most 4096 calls at once"),
        hidden("MAX_CONCURRENT_REQUESTS", "").means("set WEIR_MAX_CONNECTIONS and WEIR_MAX_BUFFERED_BYTES"),
        hidden("REQUEST_TIMEOUT", "")
            .means("set WEIR_DECISION_BUDGET, which bounds the wait of a decision for the store"),
        hidden("LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED", "")
            .means("WEIR_RESPONSE_HEADERS=ietf reports the limits of all descriptors"),
        hidden("LIMIT_PER_UNIT_HEADERS_ENABLED", "")
            .means("WEIR_RESPONSE_HEADERS=ietf reports the limits of all descriptors"),
        hidden("ENABLE_NEGATIVE_HITS", "").means("hits can be given back"),
    ]),
];

/// What precedes the sections in the help.
const INTRODUCTION: &str = "\
Environment variables, with their defaults. A flag takes precedence over its
variable. A part in brackets may be left out of a name.";

/// A wrapped line would lose its indentation.
const WIDTH: usize = 80;

static BY_NAME: LazyLock<BTreeMap<String, &Setting>> = LazyLock::new(|| {
    let named = |setting: &'static Setting| setting.expanded().map(move |name| (name, setting));
    all().flat_map(named).collect()
});

/// The sections of the help. Those of a store have no effect with another store.
fn sections() -> impl Iterator<Item = (&'static str, &'static [Setting])> {
    let of_stores = STORES.iter().map(|shared| (shared.store.name, shared.settings));
    FIRST.iter().copied().chain(of_stores).chain(OTHERS.iter().copied())
}

pub(super) fn all() -> impl Iterator<Item = &'static Setting> {
    sections().flat_map(|(_, settings)| settings)
}

pub(super) fn find(variable: &str) -> Option<&'static Setting> {
    let is_pattern = |setting: &&Setting| {
        setting.names.strip_suffix('*').is_some_and(|prefix| variable.starts_with(prefix))
    };
    BY_NAME.get(variable).copied().or_else(|| all().find(is_pattern))
}

pub(super) fn name(variable: &str) -> &'static str {
    BY_NAME.get_key_value(variable).map_or("", |(name, _)| name)
}

/// The names of all variables that begin with `prefix`, without it.
pub(super) fn names_after(prefix: &str) -> impl Iterator<Item = &'static str> {
    BY_NAME.keys().filter_map(move |name| name.strip_prefix(prefix))
}

pub(super) fn section(title: &str) -> impl Iterator<Item = (String, &'static Setting)> {
    let settings = sections().filter(move |(of, _)| *of == title).flat_map(|(_, settings)| settings);
    settings.flat_map(|setting| setting.expanded().map(move |name| (name, setting)))
}

/// The variables for `weir serve --help`.
pub fn help() -> String {
    let mut help = INTRODUCTION.to_owned();
    for (mut title, settings) in sections().filter(|(title, _)| *title != WITHOUT_EFFECT) {
        for line in settings.chunk_by(|one, next| !one.is_explained() && !next.is_explained()) {
            let items: Vec<String> = line.iter().map(Setting::described).collect();
            let mut column = 0;
            for word in items.join(", ").split(' ') {
                if column == 0 || column + 1 + word.len() > WIDTH {
                    let indent = if column > 0 && line[0].is_explained() { "  " } else { "" };
                    let begin = format!("\n  {title:<10}{indent}");
                    (title, column) = ("", begin.len() - 1);
                    help += &begin;
                }
                help = help + " " + word;
                column += 1 + word.len();
            }
        }
    }
    help + "\n"
}

// === impl Setting ===

impl Setting {
    pub(super) const fn means(self, meaning: &'static str) -> Self {
        Self { meaning, ..self }
    }

    const fn flag(self, name: &'static str, value: &'static str) -> Self {
        Self { flag: Some((name, value)), ..self }
    }

    /// The meanings of flags are among the options.
    const fn is_explained(&self) -> bool {
        !self.meaning.is_empty() && self.flag.is_none()
    }

    fn expanded(&self) -> impl Iterator<Item = String> + use<> {
        let (before, rest) = self.names.split_once('[').unwrap_or((self.names, "]"));
        let (parts, after) = rest.split_once(']').unwrap_or_default();
        let parts = iter::once("").chain(parts.split('|').filter(|part| !part.is_empty()));
        parts.map(move |part| format!("{before}{part}{after}"))
    }

    fn described(&self) -> String {
        let default = match self.default {
            "" | "false" => String::new(),
            default => format!(" ({default})"),
        };
        let meaning = if self.is_explained() { format!(": {}", self.plain_meaning()) } else { String::new() };
        format!("{}{default}{meaning}", self.names)
    }

    /// Without Markdown.
    pub(super) fn plain_meaning(&self) -> String {
        let mut parts = self.meaning.split("](");
        let first = parts.next().unwrap_or_default().to_owned();
        let after_link = parts.filter_map(|part| part.split_once(')'));
        after_link.fold(first, |text, (_, after)| text + after).replace(['[', '`'], "")
    }
}

#[cfg(test)]
mod tests;
