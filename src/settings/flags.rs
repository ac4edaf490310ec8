//! The flags of `weir serve`, as text. Each takes precedence over the variable of the same setting.

use clap::Args;

/// The flags as given on the command line.
#[derive(Args, Clone, Debug, Default)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct Flags {
    /// Directory of rule files, or one file, watched for changes [env: RUNTIME_ROOT and others] [default: ./config]
    #[arg(long, value_name = "PATH")]
    pub config: Option<String>,
    /// Interface of the gRPC server [env: GRPC_HOST] [default: 0.0.0.0]
    #[arg(long, value_name = "IP")]
    pub grpc_host: Option<String>,
    /// Port of the gRPC server; 0 selects a free port [env: GRPC_PORT] [default: 8081]
    #[arg(long, value_name = "PORT")]
    pub grpc_port: Option<String>,
    /// Unix socket of the gRPC server, instead of interface and port [env: GRPC_UDS]
    #[arg(long, value_name = "PATH")]
    pub grpc_uds: Option<String>,
    /// Interface of the HTTP server: /json, /healthcheck, /metrics [env: HOST] [default: 0.0.0.0]
    #[arg(long, value_name = "IP")]
    pub host: Option<String>,
    /// Port of the HTTP server [env: PORT] [default: 8080]
    #[arg(long, value_name = "PORT")]
    pub port: Option<String>,
    /// Interface of the debug pages [env: DEBUG_HOST] [default: 0.0.0.0]
    #[arg(long, value_name = "IP")]
    pub debug_host: Option<String>,
    /// Port of the debug pages [env: DEBUG_PORT] [default: 6070]
    #[arg(long, value_name = "PORT")]
    pub debug_port: Option<String>,
    /// Minimum level of log messages: trace, debug, info, warn or error [env: LOG_LEVEL] [default: warn]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Format of the log: text or json [env: LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Maximum number of counters in memory [env: WEIR_MAX_COUNTERS] [default: 500000]
    #[arg(long, value_name = "N")]
    pub max_counters: Option<String>,
    /// Time to serve after health checks start to fail, when stopping [env: WEIR_STOP_DELAY] [default: 1s]
    #[arg(long, value_name = "DURATION")]
    pub stop_delay: Option<String>,
    /// Time that open requests may then take before they are aborted [env: WEIR_STOP_TIMEOUT] [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub stop_timeout: Option<String>,
}

impl Flags {
    pub(super) fn get(&self, variable: &str) -> Option<(&'static str, &str)> {
        let (flag, value) = match variable {
            "GRPC_HOST" => ("--grpc-host", &self.grpc_host),
            "GRPC_PORT" => ("--grpc-port", &self.grpc_port),
            "GRPC_UDS" => ("--grpc-uds", &self.grpc_uds),
            "HOST" => ("--host", &self.host),
            "PORT" => ("--port", &self.port),
            "DEBUG_HOST" => ("--debug-host", &self.debug_host),
            "DEBUG_PORT" => ("--debug-port", &self.debug_port),
            "LOG_LEVEL" => ("--log-level", &self.log_level),
            "LOG_FORMAT" => ("--log-format", &self.log_format),
            "WEIR_MAX_COUNTERS" => ("--max-counters", &self.max_counters),
            "WEIR_STOP_DELAY" => ("--stop-delay", &self.stop_delay),
            "WEIR_STOP_TIMEOUT" => ("--stop-timeout", &self.stop_timeout),
            _ => return None,
        };
        Some((flag, value.as_deref()?))
    }
}
