//! `weir data`: looks at the counters on disk, exports and imports them, and removes what has expired.

mod line;

use std::{
    error::Error,
    io::{self, BufRead, Write},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use weir_disk::{Data, DiskError, StoredCounter};
use weir_limit::{Period, Timestamp};
use weir_store::clock::{Clock as _, SystemClock};

use self::line::{LineError, parse, print};
use super::{check::count, error::CommandResult, lines::write_line};
use crate::settings::Environment;

/// The arguments of `weir data`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct DataCommand {
    /// Data directory [env: WEIR_DATA_DIR]
    #[arg(long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    action: DataAction,
}

#[derive(Clone, Debug, Subcommand)]
enum DataAction {
    /// Verify all files, and print counters. Also while weir runs, of a copy
    Inspect {
        /// Print only counters whose names begin with this, such as shop|tenant=
        #[arg(long, default_value = "")]
        prefix: String,
        /// Print at most this many
        #[arg(long, value_name = "COUNT")]
        limit: Option<usize>,
    },
    /// Write all counters to standard output, one JSON object a line. Also while weir runs, of a copy
    Export {
        /// Write only counters whose names begin with this
        #[arg(long, default_value = "")]
        prefix: String,
    },
    /// Read counters from standard input, as export writes them. Not while weir runs
    Import,
    /// Remove what has expired from the disk. Not while weir runs, which does so by itself
    Compact,
}

/// Carries out the command. Reads counters from `input`, and writes to `out`.
pub fn data(
    command: &DataCommand,
    environment: &dyn Environment,
    input: impl BufRead,
    out: &mut impl Write,
) -> CommandResult<()> {
    let given = environment.get("WEIR_DATA_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = &command.dir.clone().or(given).ok_or("which data? Give --dir, or set WEIR_DATA_DIR")?;
    let now = SystemClock.now();
    let in_use = |error| -> Box<dyn Error> {
        if matches!(error, DiskError::InUse(_)) {
            format!("{error}: stop it first").into()
        } else {
            error.into()
        }
    };
    match &command.action {
        DataAction::Inspect { prefix, limit } => {
            inspect(&Data::open_to_read(dir, now)?, prefix, limit.unwrap_or(usize::MAX), now, out)
        }
        DataAction::Export { prefix } => {
            let data = Data::open_to_read(dir, now)?;
            data.verify()?;
            let mut written = Ok(());
            data.visit(prefix, |counter| {
                written = print(&counter, out);
                written.is_ok()
            })?;
            Ok(written?)
        }
        DataAction::Import => {
            let mut data = Data::open_or_create(dir, now).map_err(in_use)?;
            let is_empty = |line: &io::Result<String>| line.as_ref().is_ok_and(|line| line.trim().is_empty());
            let lines = input.lines().zip(1..).filter(|(line, _)| !is_empty(line));
            let counters = lines.map(|(text, line)| {
                let parsed = text.map_err(LineError::Read).and_then(|text| parse(&text));
                parsed.map_err(|error| -> Box<dyn Error> {
                    let right = "some counters of lines before it may be there: correct it, and import everything again";
                    format!("line {line}: {error}; {right}").into()
                })
            });
            let imported = data.import(counters)?;
            data.close()?;
            Ok(writeln!(out, "{imported} counters imported")?)
        }
        DataAction::Compact => {
            let data = Data::open(dir, now).map_err(in_use)?;
            let removed = data.compact()?;
            data.close()?;
            Ok(writeln!(out, "{removed} expired counters removed")?)
        }
    }
}

fn inspect(
    data: &Data,
    prefix: &str,
    limit: usize,
    now: Timestamp,
    out: &mut impl Write,
) -> CommandResult<()> {
    data.verify()?;
    let (mut all, mut expired, mut written) = (0_usize, 0_usize, Ok(()));
    data.visit(prefix, |counter| {
        if all < limit && written.is_ok() {
            written = write_line!(out, "{}", describe(&counter, now));
        }
        all += 1;
        expired += usize::from(counter.state.is_ok_and(|state| state.idle_at() <= now));
        written.is_ok()
    })?;
    written?;
    let of_copy = if data.is_copy() { ", in a copy of data in use" } else { "" };
    Ok(writeln!(out, "{}, of which {expired} have expired{of_copy}", count(all, "counter"))?)
}

fn describe(counter: &StoredCounter, now: Timestamp) -> String {
    let StoredCounter { path, tier, state } = counter;
    match state {
        Ok(state) if state.idle_at() <= now => format!("{path} {tier}: expired"),
        Ok(state) => {
            let seconds = state.idle_at().since(now).as_nanos().div_ceil(1_000_000_000);
            format!(
                "{path} {tier}: {}, expires in {}",
                count(state.used().0, "hit"),
                Period::from_secs(seconds)
            )
        }
        Err(error) => format!("{path} {tier}: {error}"),
    }
}
