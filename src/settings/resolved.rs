//! The resolved settings, which the rest of the service reads.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use weir_export::{
    log::LogFormat, otlp::MetricSettings, prometheus::TimeUnit, statsd::StatsdSettings, trace::TraceSettings,
};
use weir_net::{dns::DnsSettings, tls::ServerTls};
use weir_server::{bounds::Bounds, headers::ResponseHeaders, http::JsonAccess, resp::ServiceSettings};
use weir_sources::xds::XdsSettings;

/// All settings, resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The source of the rules.
    pub rules: RulesSettings,
    /// The gRPC server.
    pub grpc: GrpcSettings,
    /// `WEIR_REDIS_PORT`: the server of Redis' protocol, if it is on.
    pub redis_port: Option<RedisPortSettings>,
    /// The HTTP server: `/json`, `/healthcheck`, `/metrics`.
    pub http: ListenAddress,
    /// `WEIR_JSON`: who may use `/json`.
    pub json: JsonAccess,
    /// The debug pages.
    pub debug: ListenAddress,
    /// `USE_PROMETHEUS`: a separate port for metrics, as in envoyproxy/ratelimit. Other HTTP ports always serve them.
    pub prometheus: Option<PrometheusSettings>,
    /// `PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS`: the unit of response times in metrics.
    pub time_unit: TimeUnit,
    /// `PROMETHEUS_MAPPER_YAML`: the file that names the metrics of envoyproxy/ratelimit.
    pub prometheus_mapper: Option<PathBuf>,
    /// The StatsD server that stats are sent to, if any.
    pub statsd: Option<StatsdSettings>,
    /// `SANITIZE_DESCRIPTOR_METRIC_DOTS`: dots in the keys and values of rules are `_` in the names of stats.
    pub dots_are_replaced: bool,
    /// The bounds on what clients can make the servers hold or wait for.
    pub bounds: Bounds,
    /// `TRACING_ENABLED`: how requests are traced, if they are.
    pub trace: Option<TraceSettings>,
    /// `OTEL_METRICS_EXPORTER`: how metrics are sent to an OpenTelemetry collector, if they are.
    pub otlp_metrics: Option<MetricSettings>,
    /// The log.
    pub log: LogSettings,
    /// The settings of decisions.
    pub limiter: weir_limiter::DecisionSettings,
    /// The headers of every response.
    pub response_headers: ResponseHeaders,
    /// The coordination of instances that share a store.
    pub coordination: weir_coordinate::CoordinationSettings,
    /// `WEIR_MAX_COUNTERS`: the maximum number of counters in memory, at least 1.
    pub max_counters: usize,
    /// `WEIR_MAX_WAITERS`, `WEIR_MAX_WAITERS_PER_KEY` and `WEIR_MAX_WAIT`: the bounds on callers that wait.
    pub waits: weir_store::WaitBounds,
    /// The directory that counts are kept in beside memory.
    pub disk: Option<weir_disk::DiskSettings>,
    /// The Redis that instances share their counts through; without one, each keeps its counts in memory.
    pub redis: Option<weir_remotes::redis::RedisSettings>,
    /// The Memcached that instances share their counts through instead of a Redis.
    pub memcached: Option<weir_remotes::memcached::MemcachedSettings>,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: the service is healthy only with at least one domain in its rules.
    pub healthy_with_rules_only: bool,
    /// The delays of a graceful stop.
    pub stop: StopSettings,
    /// Warnings about settings without effect, for the log.
    pub warnings: Vec<String>,
}

/// The source of the rules.
#[derive(Clone, Debug)]
pub struct RulesSettings {
    /// `CONFIG_TYPE`: the control plane that sends the rules; none to read them from the directory.
    pub xds: Option<XdsSettings>,
    /// The directory that is read and watched.
    pub dir: PathBuf,
    /// How its files are read.
    pub files: weir_config::Options,
    /// `FORCE_START_WITHOUT_INITIAL_CONFIG`: starts without rules if the initial load fails.
    pub force_start: bool,
    /// How the numbers of instances that rules take from DNS are looked up.
    pub dns: DnsSettings,
}

/// Settings of the gRPC server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcSettings {
    /// The address that it listens on.
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

/// Settings of the server of Redis' protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisPortSettings {
    /// `WEIR_REDIS_HOST` and `WEIR_REDIS_PORT`.
    pub address: ListenAddress,
    /// `WEIR_REDIS_TLS`: the certificates if connections are encrypted: the gRPC server's, if it has any.
    pub tls: Option<ServerTls>,
    /// What clients have to give, and what they may do.
    pub service: ServiceSettings,
}

/// The address that the gRPC server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcAddress {
    /// An interface and a port.
    Tcp(ListenAddress),
    /// `GRPC_UDS`: the path of a unix socket.
    Unix(PathBuf),
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The interface.
    pub host: IpAddr,
    /// The port; 0 selects a free one.
    pub port: u16,
}

/// A port that serves only metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// `PROMETHEUS_ADDR`.
    pub address: ListenAddress,
    /// `PROMETHEUS_PATH`; begins with a slash.
    pub path: String,
}

/// Settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// `LOG_LEVEL` as given; [`weir_export::log`] parses it.
    pub level: String,
    /// `LOG_FORMAT`.
    pub format: LogFormat,
    /// `WEIR_LOG_VALUES`: whether the values of descriptors are in the lines about rejections.
    pub values: bool,
}

/// The delays of a graceful stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopSettings {
    /// `WEIR_STOP_DELAY`: the time to serve after health checks start to fail, so that load balancers notice.
    pub delay: Duration,
    /// `WEIR_STOP_TIMEOUT`: the time that open requests may then take before they are aborted.
    pub timeout: Duration,
}
