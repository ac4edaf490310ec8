//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use super::{
    client::{Load, Target},
    message::{Shape, Workload},
    rounds::{Effort, Pace},
};

/// Measures the cost of a decision of weir over the network, and of servers that make no decisions.
#[derive(Debug, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(crate) struct Options {
    /// Runs only the cases whose names contain this text.
    filter: Option<String>,

    /// Makes short runs and counts no instructions: for a rough comparison, not for publication.
    #[arg(long)]
    pub(crate) quick: bool,

    /// Skips counting instructions, which needs valgrind and takes minutes.
    #[arg(long)]
    no_instructions: bool,

    /// Uses the last build of the servers that weir is compared with.
    #[arg(long)]
    pub(crate) as_built: bool,

    /// Also writes the results of all cases to docs/performance.md.
    #[arg(long, conflicts_with_all = ["filter", "quick", "target"])]
    pub(crate) write: bool,

    /// Loads a running server (ADDRESS:PORT, or unix:PATH) instead of running the cases. It must have the rules that
    /// --print-rules prints.
    #[arg(long, value_parser = |text: &str| Target::parse(text).ok_or("expected ADDRESS:PORT or unix:PATH"))]
    pub(crate) target: Option<Target>,

    /// Prints the rules for --rules and --shape.
    #[arg(long)]
    pub(crate) print_rules: bool,

    /// With --target: the number of connections.
    #[arg(long, default_value_t = 4)]
    connections: usize,

    /// With --target: the requests in flight on each connection.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,

    /// With --target: a fixed rate in requests per second; default: as many as the server handles.
    #[arg(long)]
    rate: Option<u32>,

    /// With --target: the duration in seconds; ignored with --requests.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,

    /// With --target: the number of requests, instead of a duration.
    #[arg(long, conflicts_with = "rate")]
    pub(crate) requests: Option<u64>,

    /// With --target: the number of keys, used evenly; 1 means one hot key.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=9_999_900))]
    keys: u32,

    /// With --target: the seconds after which all keys are others; the rules then have windows of 10 s.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    turnover: Option<u32>,

    /// With --target: the number of rules.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rules: u32,

    /// With --target: the number of rules that requests match; default: all.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    matched: Option<u32>,

    /// With --target: the shape of a request.
    #[arg(long, value_enum, default_value_t = Shape::One)]
    shape: Shape,

    /// Also measures this limitador-server, another rate limit service in Rust.
    #[arg(long)]
    pub(crate) limitador: Option<PathBuf>,

    /// Passed by cargo to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| case.contains(filter.as_str()))
    }

    pub(crate) fn wants_instructions(&self) -> bool {
        !self.quick && !self.no_instructions
    }

    pub(crate) fn effort(&self) -> Effort {
        if self.quick {
            Effort { rounds: 5, time: Duration::from_millis(200) }
        } else {
            Effort { rounds: 15, time: Duration::from_millis(400) }
        }
    }

    pub(crate) fn load(&self) -> Load {
        Load { connections: self.connections, in_flight: self.in_flight }
    }

    pub(crate) fn workload(&self) -> Workload {
        Workload {
            shape: self.shape,
            rules: self.rules,
            matched: self.matched.unwrap_or(self.rules),
            keys: self.keys,
            turnover: self.turnover,
            limitador: false,
        }
    }

    pub(crate) fn pace(&self) -> Pace {
        self.rate.map_or(Pace::Closed, Pace::Open)
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds).unwrap_or(Duration::from_secs(5))
    }
}
