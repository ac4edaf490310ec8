//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use super::{
    client::{Load, Target},
    message::{Asked, Shape},
    rounds::{Effort, Pace},
};

/// What a decision of weir costs over the wire, beside servers that decide nothing.
#[derive(Debug, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "flags, each of its own")]
pub(crate) struct Options {
    /// Runs the cases whose names contain this; all without it.
    filter: Option<String>,

    /// Short runs, and no instructions: figures to see a direction by, not to quote.
    #[arg(long)]
    pub(crate) quick: bool,

    /// Leaves out what needs valgrind, and minutes.
    #[arg(long)]
    no_instructions: bool,

    /// Takes the servers that weir is compared with as they were built last, and builds nothing.
    #[arg(long)]
    pub(crate) as_built: bool,

    /// Puts the figures into docs/performance.md as well; for all cases together only.
    #[arg(long, conflicts_with_all = ["filter", "quick", "target"])]
    pub(crate) write: bool,

    /// Loads a server that runs already (ADDRESS:PORT, or unix:PATH), in place of all cases. It must have the rules that
    /// --print-rules prints.
    #[arg(long, value_parser = |text: &str| Target::parse(text).ok_or("neither ADDRESS:PORT nor unix:PATH"))]
    pub(crate) target: Option<Target>,

    /// Prints the rules that --rules and --shape are about.
    #[arg(long)]
    pub(crate) print_rules: bool,

    /// With --target: connections.
    #[arg(long, default_value_t = 4)]
    connections: usize,

    /// With --target: requests in flight on each connection.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,

    /// With --target: requests a second, whatever the server does; without it, as many as it answers.
    #[arg(long)]
    rate: Option<u32>,

    /// With --target: how long; with --requests, no matter.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,

    /// With --target: so many requests in place of a time.
    #[arg(long, conflicts_with = "rate")]
    pub(crate) requests: Option<u64>,

    /// With --target: keys that are asked about, evenly; 1 is one hot key.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=9_999_900))]
    keys: u32,

    /// With --target: rules that there are.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rules: u32,

    /// With --target: rules that the keys are spread over; all of them, if it is not said.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    met: Option<u32>,

    /// With --target: what a request looks like.
    #[arg(long, value_enum, default_value_t = Shape::One)]
    shape: Shape,

    /// Has this limitador-server take part, the other rate limit service in Rust.
    #[arg(long)]
    pub(crate) limitador: Option<PathBuf>,

    /// What cargo gives every benchmark.
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

    pub(crate) fn asked(&self) -> Asked {
        Asked {
            shape: self.shape,
            rules: self.rules,
            met: self.met.unwrap_or(self.rules),
            keys: self.keys,
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
