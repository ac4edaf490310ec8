//! The command line.

use std::time::Duration;

use clap::Parser;

/// Loads weir for a long time while its Redis restarts.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// How long, in seconds.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// The seconds between two restarts of Redis.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    restart: u64,

    /// The seconds that a line of output covers.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,

    /// Requests in a second, of all connections together.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: u32,

    /// The keys that are in use at a time. All of them are others after a minute.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..))]
    pub(crate) keys: u32,

    /// The number of weirs on the same Redis.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) instances: u8,

    /// The connections to each weir.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) connections: u8,

    /// Passed by cargo to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(crate) fn restart(&self) -> Duration {
        Duration::from_secs(self.restart)
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(self.interval)
    }
}
