//! A server process, and its use of processor time and memory.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use clap::ValueEnum as _;

use super::{
    client::Target,
    comparison::Kind,
    connection::Fault,
    machine::{Cores, Machine},
    rules,
};

/// The program that runs the servers that weir is compared with. cargo builds it as an example, since examples have
/// weir's own profile and benchmarks do not.
const COMPARISONS: &str = "wire-servers";

/// A server process, killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) target: Target,
    /// The address of weir's metrics.
    debug: Option<SocketAddr>,
}

/// The configuration of a weir process.
pub(crate) struct Weir<'a> {
    /// The directory of its rules.
    pub(crate) rules: &'a Path,
    pub(crate) variables: &'a [(&'static str, String)],
    pub(crate) cores: Cores,
}

impl Server {
    /// Starts a server that weir is compared with. `wrapper` is empty, or a program with arguments that runs the
    /// server.
    pub(crate) fn comparison(machine: &Machine, kind: Kind, descriptors: usize, wrapper: &[&str]) -> Self {
        let kind = kind.to_possible_value().expect("every kind has a name").get_name().to_owned();
        let mut command = wrapped(machine, &comparisons(), Cores::One, wrapper);
        command.args([kind, descriptors.to_string()]);
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let line = listening(child.stdout.take().expect("piped output"), "listening ");
        let target = Target::parse(&line).expect("an address");
        Self { child, target, debug: None }
    }

    /// Starts weir as its users do.
    pub(crate) fn weir(machine: &Machine, weir: &Weir<'_>, wrapper: &[&str]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_weir"));
        let mut command = wrapped(machine, program, weir.cores, wrapper);
        command.arg("serve").arg("--config").arg(weir.rules);
        command.args(["--grpc-host", "127.0.0.1", "--host", "127.0.0.1", "--debug-host", "127.0.0.1"]);
        command.args(["--grpc-port", "0", "--port", "0", "--debug-port", "0"]);
        let workers = match weir.cores {
            Cores::One => "1",
            Cores::Two => "2",
        };
        // weir gets only these variables; the wrapper needs PATH
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.env("WEIR_WORKERS", workers).env("WEIR_STOP_DELAY", "0");
        command.envs(weir.variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        let mut child = spawn(command.stderr(Stdio::piped()));
        let line = listening(child.stderr.take().expect("piped output"), "weir: listening ");
        let address = |name: &str| {
            let mut addresses = line.split(' ').filter_map(|part| part.split_once('='));
            addresses.find(|(server, _)| *server == name).map(|(_, address)| address)
        };
        let target = address("grpc").and_then(Target::parse).expect("the address of the gRPC server");
        let debug = address("debug").and_then(|address| address.parse().ok());
        Self { child, target, debug }
    }

    /// Starts a limitador with the limits in `limits`.
    pub(crate) fn limitador(
        machine: &Machine,
        program: &Path,
        limits: &Path,
        storage: &[String],
        wrapper: &[&str],
    ) -> Self {
        let mut command = wrapped(machine, program, Cores::One, wrapper);
        // limitador does not print its ports, so this selects ports that are free now
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let [address, http] = [free(), free()].map(|address| address.expect("there are free ports"));
        for (option, address) in [("--rls", address), ("--http", http)] {
            command.arg(format!("{option}-ip")).arg(address.ip().to_string());
            command.arg(format!("{option}-port")).arg(address.port().to_string());
        }
        command.arg(limits.join(rules::LIMITADOR)).args(storage);
        let mut child = spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
        while TcpStream::connect(address).is_err() {
            assert!(matches!(child.try_wait(), Ok(None)), "limitador has ended");
            thread::sleep(Duration::from_millis(10));
        }
        Self { child, target: Target::Tcp(address), debug: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the processor time of all its live threads.
    pub(crate) fn cpu(&self) -> Duration {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid())) else { return Duration::ZERO };
        let nanos = threads.filter_map(|thread| {
            let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }

    /// Returns its resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
        kilobytes.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    /// Returns the value of weir's metric `name`.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        let mut stream = TcpStream::connect(self.debug?).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }

    /// Shuts the server down gracefully, and waits until it exits.
    pub(crate) fn stop(mut self) {
        // the comparison servers stop when their input ends; weir needs a signal
        drop(self.child.stdin.take());
        if self.debug.is_some() {
            let sent = Command::new("kill").args(["-s", "TERM", &self.pid().to_string()]).status();
            assert!(sent.is_ok_and(|status| status.success()), "kill succeeds");
        }
        self.child.wait().expect("the server exits");
    }
}

/// Builds the program that runs the servers that weir is compared with, if needed.
pub(crate) fn build_comparisons() -> Result<(), Fault> {
    eprintln!("building {COMPARISONS}, if it is not built yet");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--locked", "--quiet", "--example", COMPARISONS]);
    // cargo's variables for this program would make some crates' build scripts run again
    for (name, _) in std::env::vars_os() {
        let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_", "OUT_DIR"];
        if prefixes.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            cargo.env_remove(name);
        }
    }
    if cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status()?.success() {
        return Ok(());
    }
    Err(Fault::Build(COMPARISONS))
}

/// Returns the path of the built program, next to `deps`, which contains this program.
fn comparisons() -> PathBuf {
    let this = std::env::current_exe().expect("the path of this program");
    this.ancestors().nth(2).expect("a directory above").join("examples").join(COMPARISONS)
}

fn wrapped(machine: &Machine, program: &Path, cores: Cores, wrapper: &[&str]) -> Command {
    let program = program.to_str().expect("a plain path");
    match wrapper {
        [] => machine.command(program, cores),
        [first, arguments @ ..] => {
            let mut command = machine.command(first, cores);
            command.args(arguments).arg(program);
            command
        }
    }
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"))
}

/// Waits for a line that begins with `prefix`, and returns the rest of it. Discards all further output.
fn listening(output: impl Read + Send + 'static, prefix: &str) -> String {
    let mut output = BufReader::new(output);
    let mut before = String::new();
    loop {
        let mut line = String::new();
        let count = output.read_line(&mut line).expect("a line");
        assert!(count > 0, "a server has ended: {before}");
        if let Some(rest) = line.trim_end().strip_prefix(prefix) {
            let rest = rest.to_owned();
            thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
            return rest;
        }
        before.push_str(&line);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
