//! The program `weir`.

mod cli;

use std::{env, process::ExitCode};

use tracing::Level;
use weir::settings::{Flags, ProcessEnvironment, log_format};
use weir_export::log::{self, LogFormat};
use weir_observe::text::with_causes;

use crate::cli::{arguments::parse, run};

/// Returns the memory of closed connections; musl's own takes several times as long under load (`docs/performance.md`).
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
        log::print(format, Level::ERROR, &with_causes(error.as_ref()), &[]);
        ExitCode::from(FAILED)
    })
}
