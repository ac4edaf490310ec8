//! The command line.

use clap::Parser;

/// Attacks a weir, and prints its memory.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The HTTP port of a running weir, such as 127.0.0.1:8080. Without it, a weir is started for each attack.
    #[arg(long, value_name = "HOST:PORT", requires = "grpc")]
    pub(crate) http: Option<String>,

    /// Its gRPC port, without TLS, such as 127.0.0.1:8081.
    #[arg(long, value_name = "HOST:PORT", requires = "http")]
    pub(crate) grpc: Option<String>,

    /// Its debug port, if it can be reached: its pages are attacked, too.
    #[arg(long, value_name = "HOST:PORT", requires = "http")]
    pub(crate) debug: Option<String>,

    /// A domain that it has rules for: its requests may then have limits of their own, with stats of their own.
    #[arg(long, requires = "http")]
    pub(crate) domain: Option<String>,

    /// The megabytes above which the benchmark fails.
    #[arg(long, default_value_t = 200)]
    most: u64,

    /// The attacks to run; all if none is named.
    attacks: Vec<String>,

    /// Passed by cargo to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub(crate) fn includes(&self, attack: &str) -> bool {
        self.attacks.is_empty() || self.attacks.iter().any(|named| attack.starts_with(named.as_str()))
    }

    /// Returns whether each attack is on a weir that this benchmark starts.
    pub(crate) fn starts_its_own(&self) -> bool {
        self.http.is_none()
    }

    /// Returns the bytes above which the benchmark fails.
    pub(crate) fn most(&self) -> u64 {
        self.most << 20
    }
}
