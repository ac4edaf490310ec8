//! The flags of `weir serve`, as text. Each stands for a variable, and wins over it.

use clap::Args;

/// What was given on the command line.
#[derive(Args, Clone, Debug, Default)]
#[expect(clippy::doc_markdown, reason = "clap prints what stands here as it is")]
pub struct Flags {
    /// Read the rules from this directory, and watch it (RUNTIME_ROOT and others, ./config)
    #[arg(long, value_name = "DIR")]
    pub config: Option<String>,
    /// Serve gRPC on this interface (variable and default: GRPC_HOST, 0.0.0.0)
    #[arg(long, value_name = "IP")]
    pub grpc_host: Option<String>,
    /// Serve gRPC on this port; 0 for any that is free (GRPC_PORT, 8081)
    #[arg(long, value_name = "PORT")]
    pub grpc_port: Option<String>,
    /// Serve gRPC on this unix socket instead (GRPC_UDS)
    #[arg(long, value_name = "PATH")]
    pub grpc_uds: Option<String>,
    /// Serve /json, /healthcheck and /metrics on this interface (HOST, 0.0.0.0)
    #[arg(long, value_name = "IP")]
    pub host: Option<String>,
    /// … and on this port (PORT, 8080)
    #[arg(long, value_name = "PORT")]
    pub port: Option<String>,
    /// Serve the debug pages on this interface (DEBUG_HOST, 0.0.0.0)
    #[arg(long, value_name = "IP")]
    pub debug_host: Option<String>,
    /// … and on this port (DEBUG_PORT, 6070)
    #[arg(long, value_name = "PORT")]
    pub debug_port: Option<String>,
    /// Log this and what is graver: trace, debug, info, warn or error (LOG_LEVEL, warn)
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Log as text or as json (LOG_FORMAT, text)
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Hold at most this many counters in memory (WEIR_MAX_COUNTERS, 1000000)
    #[arg(long, value_name = "N")]
    pub max_counters: Option<String>,
    /// Go on for so long after health began to fail, when told to stop (WEIR_STOP_DELAY, 1s)
    #[arg(long, value_name = "DURATION")]
    pub stop_delay: Option<String>,
    /// Cut what has not ended so long after that (WEIR_STOP_TIMEOUT, 30s)
    #[arg(long, value_name = "DURATION")]
    pub stop_timeout: Option<String>,
}

impl Flags {
    /// The flag that stands for `variable`, with its value, if it was given.
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
