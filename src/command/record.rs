//! `weir record`: downloads what running instances were asked and have decided.

use std::{
    error::Error,
    fs::{self, File, OpenOptions},
    hash::{BuildHasher as _, RandomState},
    io::{self, Write},
    net::ToSocketAddrs as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Value, json};
use weir_recording::{RecordingHeader, ValueKey};

use super::{
    admin::{AdminTarget, parse_admin_address},
    call::CallTls,
    error::{CommandResult, failed},
    progress::run_all,
};
use crate::settings::Environment;

const PATH: &str = "/v1/recording";

/// The header with the key of hashed values.
const KEY: &str = "x-weir-recording-key";

/// What stands before a name of several instances.
const ALL_OF: &str = "dns:";

/// The largest recording that is downloaded.
const MAX_BYTES: usize = 256 << 20;

/// How much longer instances record than it takes to ask them.
const MARGIN: Duration = Duration::from_secs(30);

/// How often the progress is shown.
const LOOK: Duration = Duration::from_millis(500);

/// The name of a key file beside nothing.
const KEY_FILE: &str = "recording.key";

/// The arguments of `weir record`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct RecordArguments {
    /// Address of the debug port of an instance, HOST:PORT or https://HOST:PORT, or dns:NAME:PORT for all that have this
    /// name; may be repeated [default: this host and DEBUG_PORT, or 6070]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_instance)]
    pub address: Vec<String>,
    /// How long to record; 0 downloads what is there
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1_440))]
    pub minutes: u32,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Keep the values of descriptors as they are, instead of their hashes
    #[arg(long, conflicts_with = "key_file")]
    pub values: bool,
    /// The key of the hashes: made if there is no such file [default: the output's name and .key, or recording.key]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// File with a token of WEIR_ADMIN_TOKEN_FILE, or that file: its first token
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Files of TLS, which https:// or any of them switches on.
    #[command(flatten)]
    pub tls: CallTls,
    /// How long to wait for each reply, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
}

/// An instance, and its name in messages.
struct RecordedInstance {
    target: AdminTarget,
    name: String,
}

fn parse_instance(text: &str) -> Result<String, &'static str> {
    parse_admin_address(text.strip_prefix(ALL_OF).unwrap_or(text)).map(|_| text.to_owned())
}

/// Records, and writes the recordings of all instances. Returns whether all of them have answered; one that has not is
/// named on standard error and in what is written.
pub fn record(
    args: &RecordArguments,
    environment: &dyn Environment,
    out: &mut impl Write,
) -> CommandResult<bool> {
    let instances = args.instances()?;
    let mut file = args.output.as_deref().map(create).transpose()?;
    let key = if args.values { None } else { Some(args.key()?) };
    let mut is_missing = vec![false; instances.len()];
    if args.minutes > 0 {
        for (instance, is_missing) in instances.iter().zip(&mut is_missing) {
            let started = instance.target.post(PATH, &args.order(), environment);
            *is_missing = started.map_err(|error| instance.tell(&*error)).is_err();
        }
        if !is_missing.contains(&false) {
            return Err("no instance records".into());
        }
        wait(Duration::from_secs(60 * u64::from(args.minutes)));
    }
    let out: &mut dyn Write = match &mut file {
        Some(file) => file,
        None => out,
    };
    for (instance, is_missing) in instances.iter().zip(&mut is_missing) {
        let downloaded = if *is_missing { None } else { instance.download(key.as_ref(), environment) };
        *is_missing = downloaded.is_none();
        let header = || RecordingHeader {
            instance: instance.name.clone(),
            is_missing: true,
            ..RecordingHeader::default()
        };
        let bytes = downloaded.unwrap_or_else(|| header().bytes());
        out.write_all(&bytes).map_err(failed("cannot write the recording"))?;
    }
    out.flush().map_err(failed("cannot write the recording"))?;
    Ok(!is_missing.contains(&true))
}

/// Shows how much of the time has passed.
fn wait(time: Duration) {
    let begun = Instant::now();
    run_all(&[time], |time, progress| {
        while begun.elapsed() < *time {
            thread::sleep(time.saturating_sub(begun.elapsed()).min(LOOK));
            progress(begun.elapsed().as_secs_f64() / time.as_secs_f64());
        }
    });
}

fn create(path: &Path) -> CommandResult<File> {
    File::create(path).map_err(failed(format!("cannot write {}", path.display())))
}

/// From the operating system, as for all keys of hashes in this process.
fn random_key() -> ValueKey {
    ValueKey::new([0_u64, 1, 2, 3].map(|i| RandomState::new().hash_one(i)))
}

// === impl RecordArguments ===

impl RecordArguments {
    fn instances(&self) -> CommandResult<Vec<RecordedInstance>> {
        let at = |address: Option<String>| RecordedInstance {
            name: address.clone().unwrap_or_else(|| "this host".to_owned()),
            target: AdminTarget {
                address,
                token_file: self.token_file.clone(),
                tls: self.tls.clone(),
                timeout: self.timeout,
            },
        };
        let mut instances = Vec::new();
        for address in &self.address {
            let Some(name) = address.strip_prefix(ALL_OF) else {
                instances.push(at(Some(address.clone())));
                continue;
            };
            let found = name.to_socket_addrs().map_err(failed(format!("no address of {name}")))?;
            instances.extend(found.map(|address| at(Some(address.to_string()))));
        }
        if self.address.is_empty() {
            instances.push(at(None));
        }
        if instances.is_empty() { Err("there is no instance".into()) } else { Ok(instances) }
    }

    fn order(&self) -> Value {
        let seconds = 60 * u64::from(self.minutes) + MARGIN.as_secs();
        json!({ "seconds": seconds.min(86_400), "values": self.values })
    }

    /// Makes the key if there is none, in a file that others cannot read.
    fn key(&self) -> CommandResult<ValueKey> {
        let path = self.key_file.clone().unwrap_or_else(|| match &self.output {
            Some(output) => {
                let mut path = output.clone().into_os_string();
                path.push(".key");
                path.into()
            }
            None => KEY_FILE.into(),
        });
        let what = |what: &str| format!("cannot {what} the key in {}", path.display());
        let key = random_key();
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => {
                writeln!(file, "{key}").map_err(failed(what("write")))?;
                Ok(key)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let text = fs::read_to_string(&path).map_err(failed(what("read")))?;
                text.parse().map_err(failed(what("read")))
            }
            Err(error) => Err(failed(what("write"))(error)),
        }
    }
}

// === impl RecordedInstance ===

impl RecordedInstance {
    /// None if it does not answer, which is told.
    fn download(&self, key: Option<&ValueKey>, environment: &dyn Environment) -> Option<Vec<u8>> {
        let key = key.map(ToString::to_string);
        let (path, header) = match &key {
            Some(key) => (PATH.to_owned(), Some((KEY, key.as_str()))),
            None => (format!("{PATH}?values=true"), None),
        };
        let downloaded = self.target.download(&path, header, MAX_BYTES, environment);
        downloaded.map_err(|error| self.tell(&*error)).ok()
    }

    fn tell(&self, error: &dyn Error) {
        let (mut text, mut cause) = (error.to_string(), error.source());
        while let Some(error) = cause {
            text.extend([": ", &error.to_string()]);
            cause = error.source();
        }
        // the recordings of others are what counts
        let _ = writeln!(io::stderr(), "{}: {text}", self.name);
    }
}
