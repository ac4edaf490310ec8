//! The program `weir`.

mod cli;

use std::{env, error::Error, fmt::Write as _, process::ExitCode};

use tracing::Level;
use weir::settings::{Flags, ProcessEnvironment, log_format};
use weir_export::log::{self, LogFormat};

use crate::cli::{arguments::parse, run};

/// musl's own allocator takes several times as long under load. On glibc, mimalloc keeps more memory than the bounds on
/// hostile clients allow (`docs/performance.md`).
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code of every error, including invalid arguments: clap's 2 means that a request is over its limit.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let (cli, ignored) = match parse(env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(error) => {
            let format = log_format(&Flags::default(), &ProcessEnvironment);
            if error.use_stderr() && format == LogFormat::Json {
                log::print(format, Level::ERROR, error.render().to_string().trim_end(), &[]);
            } else {
                // help and version are errors too; a failure to print cannot be reported
                let _ = error.print();
            }
            return if error.use_stderr() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS };
        }
    };
    let format = cli.log_format();
    log::init_panics(format);
    run(cli, &ignored).unwrap_or_else(|error| {
        log::print(format, Level::ERROR, &chain(error.as_ref()), &[]);
        ExitCode::from(FAILED)
    })
}

/// Formats the error with all its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // an error that wraps another often has its text
        if !text.ends_with(&next) {
            // writing to a string cannot fail
            let _ = write!(text, ": {next}");
        }
        cause = error.source();
    }
    text
}
