//! `weir record`: downloads what running instances were asked and have decided.

use std::{
    fs::{self, File, OpenOptions},
    hash::{BuildHasher as _, RandomState},
    io::{self, Write},
    net::{SocketAddr, ToSocketAddrs as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use clap::Args;
use serde_json::json;
use weir_recording::{RecordingHeader, ValueKey};

use super::{
    debug_api::{ApiCall, ApiError, call_api},
    error::{CommandResult, failed},
    local_page::{parse_address, reachable},
};
use crate::settings::{self, Environment};

const PATH: &str = "/v1/recording";

/// How much longer instances record than it takes to ask them.
const MARGIN: Duration = Duration::from_secs(30);

/// The name of a key file beside nothing.
const KEY_FILE: &str = "recording.key";

/// The arguments of `weir record`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct Record {
    /// Address of the debug port of an instance, HOST:PORT, or dns:NAME:PORT for all that have this name; may be repeated
    /// [default: this host and DEBUG_PORT, or 6070]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
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
    /// File with a token of the instances
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// How long to wait for each part of a reply, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
}

/// What is asked of each instance.
struct Recordings<'a> {
    args: &'a Record,
    key: Option<ValueKey>,
    token: Option<String>,
}

/// Records, and writes the recordings of all instances. Returns whether all of them have answered; one that has not is
/// named on standard error and in what is written.
pub fn record(args: &Record, environment: &dyn Environment, out: &mut impl Write) -> CommandResult<bool> {
    let instances = args.instances(environment)?;
    let token = args.token_file.as_deref().map(fs::read_to_string).transpose();
    let token = token.map_err(failed("cannot read the token"))?.map(|token| token.trim().to_owned());
    let mut file = args.output.as_deref().map(create).transpose()?;
    let key = if args.values { None } else { Some(args.key()?) };
    let recordings = Recordings { args, key, token };
    let mut is_missing = vec![false; instances.len()];
    if args.minutes > 0 {
        for (instance, is_missing) in instances.iter().zip(&mut is_missing) {
            *is_missing = recordings.start(*instance).map_err(|error| told(*instance, &error)).is_err();
        }
        if is_missing.iter().all(|is_missing| *is_missing) {
            return Err("no instance records".into());
        }
        thread::sleep(Duration::from_secs(60 * u64::from(args.minutes)));
    }
    let out: &mut dyn Write = match &mut file {
        Some(file) => file,
        None => out,
    };
    for (instance, is_missing) in instances.iter().zip(&mut is_missing) {
        let downloaded = if *is_missing { None } else { Some(recordings.download(*instance, out)) };
        if let Some(Err(error)) = &downloaded {
            told(*instance, error);
        }
        if !matches!(downloaded, Some(Ok(()))) {
            *is_missing = true;
            let header = RecordingHeader {
                instance: instance.to_string(),
                is_missing: true,
                ..RecordingHeader::default()
            };
            out.write_all(&header.bytes()).map_err(failed("cannot write the recording"))?;
        }
    }
    out.flush().map_err(failed("cannot write the recording"))?;
    Ok(!is_missing.contains(&true))
}

fn told(instance: SocketAddr, error: &ApiError) {
    // the recordings of others are what counts
    let _ = writeln!(io::stderr(), "{instance}: {error}");
}

fn create(path: &Path) -> CommandResult<File> {
    File::create(path).map_err(failed(format!("cannot write {}", path.display())))
}

/// From the operating system, as for all keys of hashes in this process.
fn random_key() -> ValueKey {
    ValueKey::new([0_u64, 1, 2, 3].map(|i| RandomState::new().hash_one(i)))
}

// === impl Record ===

impl Record {
    fn instances(&self, environment: &dyn Environment) -> CommandResult<Vec<SocketAddr>> {
        let mut instances = Vec::new();
        for address in &self.address {
            let (name, is_all) = match address.strip_prefix("dns:") {
                Some(name) => (name, true),
                None => (address.as_str(), false),
            };
            let found = name.to_socket_addrs().map_err(failed(format!("no address of {name}")))?;
            instances.extend(found.take(if is_all { usize::MAX } else { 1 }));
        }
        if self.address.is_empty() {
            let listening = settings::debug_address(environment)?;
            let host = reachable(listening.host).into_iter().next();
            instances.extend(host.map(|host| SocketAddr::new(host, listening.port)));
        }
        if instances.is_empty() { Err("there is no instance".into()) } else { Ok(instances) }
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

// === impl Recordings ===

impl Recordings<'_> {
    fn start(&self, instance: SocketAddr) -> Result<(), ApiError> {
        let seconds = 60 * u64::from(self.args.minutes) + MARGIN.as_secs();
        let body = json!({ "seconds": seconds.min(86_400), "values": self.args.values }).to_string();
        let headers = vec![("content-type", "application/json".to_owned())];
        self.call(instance, ApiCall { method: "POST", path: PATH, headers, body }, &mut io::sink())
    }

    fn download(&self, instance: SocketAddr, out: &mut dyn Write) -> Result<(), ApiError> {
        let path = if self.key.is_none() { "/v1/recording?values=true" } else { PATH };
        let headers = self.key.iter().map(|key| ("x-weir-recording-key", key.to_string())).collect();
        self.call(instance, ApiCall { method: "GET", path, headers, body: String::new() }, out)
    }

    fn call(&self, instance: SocketAddr, mut call: ApiCall<'_>, out: &mut dyn Write) -> Result<(), ApiError> {
        if let Some(token) = &self.token {
            call.headers.push(("authorization", format!("Bearer {token}")));
        }
        call_api(instance, &call, Duration::from_millis(self.args.timeout), out)
    }
}
