//! The resolved settings: what the rest of the service reads.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use crate::{
    limiter,
    observe::{log::Format, prometheus::TimeUnit, statsd::StatsdSettings},
    server::headers::ResponseHeaders,
    store,
};

/// Everything that can be set, resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the rules come from.
    pub rules: RulesSettings,
    /// The gRPC door.
    pub grpc: GrpcSettings,
    /// The HTTP door: `/json`, `/healthcheck`, `/metrics`.
    pub http: Address,
    /// The debug pages.
    pub debug: Address,
    /// `USE_PROMETHEUS`: metrics on a port of their own, as the reference serves them. `/metrics` of the other two
    /// ports is there in any case.
    pub prometheus: Option<PrometheusSettings>,
    /// `PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS`: how metrics tell response times.
    pub time_unit: TimeUnit,
    /// StatsD, if it is to be told.
    pub statsd: Option<StatsdSettings>,
    /// The log.
    pub log: LogSettings,
    /// How requests are decided.
    pub limiter: limiter::DecisionSettings,
    /// The headers of every response.
    pub response_headers: ResponseHeaders,
    /// How instances count together, where they share a Redis.
    pub coordination: store::coordinated::CoordinationSettings,
    /// `WEIR_MAX_COUNTERS`: counters that the memory store holds, at least 1.
    pub max_counters: usize,
    /// The Redis that counts are shared through; without it they are kept in memory.
    pub redis: Option<store::redis::RedisSettings>,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: without a domain in the rules the service is not healthy.
    pub healthy_with_rules_only: bool,
    /// How the service stops.
    pub stop: StopSettings,
    /// What was set and has no effect, for the log.
    pub warnings: Vec<String>,
}

/// Where the rules come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesSettings {
    /// The directory that is read, and watched.
    pub dir: PathBuf,
    /// `MERGE_DOMAIN_CONFIG`: several files may add to one domain.
    pub merge_domains: bool,
    /// `RUNTIME_IGNOREDOTFILES`: files and directories whose name begins with a dot are not read.
    pub ignore_dotfiles: bool,
    /// `FORCE_START_WITHOUT_INITIAL_CONFIG`: start without rules when the first ones are bad.
    pub force_start: bool,
}

/// The gRPC door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcSettings {
    /// Where it listens.
    pub address: GrpcAddress,
    /// `GRPC_MAX_CONNECTION_AGE`: how old a connection grows, give or take a tenth, before its client is told to open
    /// another; none for ever.
    pub max_age: Option<Duration>,
    /// `GRPC_MAX_CONNECTION_AGE_GRACE`: how long it may then go on with the requests that it has; none for ever.
    pub max_age_grace: Option<Duration>,
    /// `WEIR_WORKERS`: threads that serve it, at least 1; by default one for each core that the process may use.
    pub threads: usize,
}

/// Where the gRPC door listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcAddress {
    /// On a port.
    Tcp(Address),
    /// `GRPC_UDS`: on a unix socket.
    Unix(PathBuf),
}

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface.
    pub host: IpAddr,
    /// The port; 0 for any that is free.
    pub port: u16,
}

/// A port for Prometheus alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// `PROMETHEUS_ADDR`.
    pub address: Address,
    /// `PROMETHEUS_PATH`; begins with a slash.
    pub path: String,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// `LOG_LEVEL`, as given: [`observe::log`](crate::observe::log) knows the names.
    pub level: String,
    /// `LOG_FORMAT`.
    pub format: Format,
}

/// How the service stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopSettings {
    /// `WEIR_STOP_DELAY`: how long it goes on after its health began to fail, so that whoever asks for it learns of it.
    pub delay: Duration,
    /// `WEIR_STOP_TIMEOUT`: how long requests may then take to end, before they are cut.
    pub timeout: Duration,
}
