//! `weir replay`: what other rules would have decided about recorded requests.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use clap::Args;
use weir_config::{ConfigErrors, Loaded};
use weir_limit::Domain;
use weir_recording::{Recording, ValueKey};
use weir_replay::{
    AccessLogMap, Comparison, FieldPath, ReplayInput, ReplaySettings, compare, read_access_log,
};

use super::{
    check::write_findings,
    error::{CommandResult, failed},
    lines::write_json,
    progress::run_all,
    replay_page::page,
};

/// The most bytes of all recordings.
const MAX_BYTES: u64 = 1 << 30;

const UNPRINTED: &str = "cannot print the result";

/// The arguments of `weir replay`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct Replay {
    /// Recordings of weir record, or with --map one access log as JSON lines; - for standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Fail with exit code 2 if more of all requests than this are rejected that were admitted, such as 1%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub max_increase: Option<f64>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Write the result with pictures to this HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The key of hashed values, which weir record has written: values that rules name are found
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Entry of the descriptor, and the field of the log with its value, such as tenant=.x_tenant
    #[arg(long, value_name = "KEY=.FIELD", value_parser = parse_map, requires_all = ["time", "domain"])]
    pub map: Vec<(String, FieldPath)>,
    /// Field of the log with the time of a request: RFC 3339, or seconds since 1970
    #[arg(long, value_name = ".FIELD", requires = "map")]
    pub time: Option<FieldPath>,
    /// Domain of the requests of the log
    #[arg(long, value_name = "DOMAIN", requires = "map")]
    pub domain: Option<String>,
}

/// The rules that are compared.
#[derive(Debug)]
pub struct ReplayedRules {
    pub new: Result<Loaded, ConfigErrors>,
    /// Without them, the old decisions are those of the recording.
    pub old: Option<Result<Loaded, ConfigErrors>>,
    pub settings: ReplaySettings,
}

fn parse_percent(text: &str) -> Result<f64, &'static str> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    number
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or("write a share from 0% to 100%, such as 1%")
}

fn parse_map(text: &str) -> Result<(String, FieldPath), String> {
    let (key, field) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("write KEY=.FIELD")?;
    Ok((key.to_owned(), field.parse().map_err(|error| format!("{error}"))?))
}

/// Prints what differs. Returns whether it is within `--max-increase`.
pub fn replay(args: &Replay, rules: ReplayedRules, out: &mut impl Write) -> CommandResult<bool> {
    let new = domains("--config", rules.new)?;
    let old = rules.old.map(|old| domains("--old", old)).transpose()?;
    let key = args.key_file.as_deref().map(read_key).transpose()?;
    let (recordings, unknown) = args.recordings()?;
    // opened first, so that an invalid path fails before the replay, not after it
    let html = args.html.as_deref().map(|path| create(path).map(|file| (path, file))).transpose()?;
    let input = ReplayInput {
        recordings: &recordings,
        new: &new,
        old: old.as_deref(),
        settings: rules.settings,
        key,
        unknown,
    };
    let run = |input: &ReplayInput<'_>, progress: &dyn Fn(f64)| {
        compare(input, |share| {
            progress(share);
            ControlFlow::Continue(())
        })
    };
    let comparison: Comparison = run_all(&[input], run).into_iter().flatten().next().unwrap_or_default();
    if let Some((path, mut file)) = html {
        file.write_all(page(&comparison).as_bytes())
            .map_err(failed(format!("cannot write {}", path.display())))?;
    }
    let printed =
        if args.json { write_json(out, &comparison.json().to_string()) } else { write!(out, "{comparison}") };
    printed.map_err(failed(UNPRINTED))?;
    Ok(args.max_increase.is_none_or(|most| comparison.increase() * 100.0 <= most))
}

/// Errors are printed on standard error, as `weir check` prints them.
fn domains(flag: &str, loaded: Result<Loaded, ConfigErrors>) -> CommandResult<Vec<Domain>> {
    loaded.map(|loaded| loaded.domains).map_err(|ConfigErrors { errors, warnings }| {
        // what cannot be printed is not the error
        let _ = write_findings(&errors, &warnings, &mut io::stderr());
        format!("the rules of {flag} are not valid").into()
    })
}

fn create(path: &Path) -> CommandResult<File> {
    File::create(path).map_err(failed(format!("cannot write {}", path.display())))
}

fn read_key(path: &Path) -> CommandResult<ValueKey> {
    let what = || format!("cannot read the key in {}", path.display());
    fs::read_to_string(path).map_err(failed(what()))?.parse().map_err(failed(what()))
}

fn open(path: &Path) -> CommandResult<Box<dyn Read>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdin()));
    }
    Ok(Box::new(File::open(path).map_err(failed(format!("cannot read {}", path.display())))?))
}

impl Replay {
    /// And what a replay cannot know of them.
    fn recordings(&self) -> CommandResult<(Vec<Recording>, Vec<String>)> {
        if let (Some(time), Some(domain)) = (&self.time, &self.domain) {
            return self.log(&AccessLogMap {
                domain: domain.clone(),
                entries: self.map.clone(),
                time: time.clone(),
            });
        }
        let (mut recordings, mut left) = (Vec::new(), MAX_BYTES);
        for path in &self.files {
            let what = || format!("cannot read {}", path.display());
            let mut bytes = Vec::new();
            open(path)?.take(left + 1).read_to_end(&mut bytes).map_err(failed(what()))?;
            left =
                left.checked_sub(bytes.len() as u64).ok_or("the recordings have more than 1 GiB together")?;
            recordings.extend(Recording::read_all(bytes).map_err(failed(what()))?);
        }
        Ok((recordings, Vec::new()))
    }

    fn log(&self, map: &AccessLogMap) -> CommandResult<(Vec<Recording>, Vec<String>)> {
        let [path] = &*self.files else { return Err("with --map, name one access log".into()) };
        let log = read_access_log(BufReader::new(open(path)?), map)
            .map_err(failed(format!("cannot read {}", path.display())))?;
        let unknown = log.unknown();
        Ok((vec![log.recording], unknown))
    }
}
