//! Measures the cost of a decision over the network: weir as users run it, and servers that make no decisions, under
//! the same load.
//!
//! `cargo bench --bench wire -- --help`; `docs/performance.md` has the results and explains them.

mod bench;
mod callgrind;
mod cases;
mod client;
mod comparison;
mod connection;
mod entrant;
mod everyday;
mod hpack;
mod message;
mod options;
mod redis;
mod rounds;
mod rules;
mod server;
mod table;

use std::{error::Error as _, process::ExitCode};

use clap::Parser as _;

use weir_benches::{frame, histogram, machine};

use crate::options::Options;

fn main() -> ExitCode {
    let Err(error) = cases::run(&Options::parse()) else { return ExitCode::SUCCESS };
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    eprintln!("{error}{cause}");
    ExitCode::FAILURE
}
