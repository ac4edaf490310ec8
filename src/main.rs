//! The command line of weir.

mod cli;

use std::{error::Error, fmt::Write as _, process::ExitCode};

use clap::Parser as _;

use crate::cli::{Cli, run};

/// What is wrong with the command line ends as every other error does: 2 is for a request that is over its limit.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // help and version come this way, too; where they cannot be printed there is nothing left to say
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS };
        }
    };
    run(cli).unwrap_or_else(|error| {
        eprintln!("weir: error: {}", chain(error.as_ref()));
        ExitCode::from(FAILED)
    })
}

/// The error, and what caused it, and what caused that.
fn chain(error: &dyn Error) -> String {
    let (mut text, mut last) = (error.to_string(), error.to_string());
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // errors that wrap others often say no more than those do
        if next != last {
            // to write to a text cannot fail
            let _ = write!(text, ": {next}");
        }
        last = next;
        cause = error.source();
    }
    text
}
