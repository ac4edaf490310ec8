//! The program `weir`.

mod cli;

use std::{error::Error, fmt::Write as _, process::ExitCode};

use clap::Parser as _;

use crate::cli::{Cli, run};

/// The exit code of every error, also in the arguments: clap's 2 stands for a request that is over its limit.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // also help and version; a failure to print cannot be reported
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS };
        }
    };
    run(cli).unwrap_or_else(|error| {
        eprintln!("weir: error: {}", chain(error.as_ref()));
        ExitCode::from(FAILED)
    })
}

/// Formats the error with all its causes.
fn chain(error: &dyn Error) -> String {
    let (mut text, mut last) = (error.to_string(), error.to_string());
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // an error that wraps another often has the same text
        if next != last {
            // writing to a string cannot fail
            let _ = write!(text, ": {next}");
        }
        last = next;
        cause = error.source();
    }
    text
}
