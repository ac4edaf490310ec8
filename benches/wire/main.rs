//! What a decision costs over the wire: weir as its users run it, beside servers that decide nothing, all under the same
//! load.
//!
//! `cargo bench --bench wire -- --help`; `docs/performance.md` has its figures and says how they are meant.

mod bench;
mod callgrind;
mod cases;
mod client;
mod connection;
mod entrant;
mod frame;
mod histogram;
mod hpack;
mod machine;
mod message;
mod options;
mod redis;
mod rounds;
mod rules;
mod serve;
mod server;
mod table;

use std::process::ExitCode;

use clap::Parser as _;

use crate::options::Options;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(kind) = options.serve {
        return match serve::run(kind, options.descriptors) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    match cases::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{fault}: {fault:?}");
            ExitCode::FAILURE
        }
    }
}
