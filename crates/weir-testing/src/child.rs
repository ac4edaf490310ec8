//! Runs weir like a user: as a separate process, on free ports.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How long a test waits for an event before it fails.
const DEADLINE: Duration = Duration::from_secs(30);

/// A running weir, killed on drop.
pub struct Serving {
    child: Child,
    /// The addresses that it prints: `grpc=… http=… debug=…`.
    listening: String,
    /// Receives its whole output when it has exited.
    rest: mpsc::Receiver<String>,
}

/// Returns the program of the build that the test is of.
pub fn program() -> PathBuf {
    let test = env::current_exe().expect("the test's own path");
    test.ancestors().nth(2).expect("target/*/deps/").join("weir")
}

/// Returns a command that runs weir with `variables` as its whole environment.
pub fn weir(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).env_clear().envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

/// Runs weir until it exits.
pub fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut child = weir(arguments, variables)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started");
    wait(&mut child);
    child.wait_with_output().expect("its output")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("its state") {
            return status;
        }
        if begun.elapsed() > DEADLINE {
            child.kill().expect("it can be killed");
            panic!("it did not exit in time");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the addresses from the line that reports them, in text or JSON.
fn addresses(line: &str) -> Option<String> {
    if let Some(addresses) = line.strip_prefix("weir: listening ") {
        return Some(addresses.to_owned());
    }
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields =
        line.as_object().filter(|line| line["@message"] == "listening" && line.contains_key("grpc"))?;
    let fields = fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
    Some(fields.collect::<Vec<_>>().join(" "))
}

impl Serving {
    /// Serves the rules of `dir`.
    pub fn start(dir: &str, variables: &[(&str, &str)]) -> Self {
        let here = ["--grpc-host", "127.0.0.1", "--host", "127.0.0.1", "--debug-host", "127.0.0.1"];
        let any = ["--grpc-port", "0", "--port", "0", "--debug-port", "0"];
        Self::new(weir(&[&["serve", "--config", dir][..], &here, &any].concat(), variables))
    }

    /// Serves with settings from the environment `variables` only.
    pub fn start_by_environment(variables: &[(&str, &str)]) -> Self {
        let mut command = weir(&[], &[("HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")]);
        command.envs([("PORT", "0"), ("DEBUG_PORT", "0")]).envs(variables.iter().copied());
        Self::new(command)
    }

    /// Serves by `command`, which runs weir.
    pub fn start_command(command: Command) -> Self {
        Self::new(command)
    }

    fn new(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it can be started");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (mut before, mut listening) = (String::new(), None);
        // log lines of the start come before the addresses
        while listening.is_none() {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).expect("a line") > 0, "it does not listen: {before}");
            listening = addresses(line.trim_end());
            before.push_str(&line);
        }
        let listening = listening.unwrap_or_default();
        let (output, rest) = mpsc::channel();
        thread::spawn(move || {
            let mut text = before;
            // a child that is killed may end in the middle of a character
            let _ = stderr.read_to_string(&mut text);
            let _ = output.send(text);
        });
        Self { child, listening, rest }
    }

    /// Returns the address of the named server: `grpc`, `http` or `debug`.
    pub fn address(&self, server: &str) -> &str {
        let mut addresses = self.listening.split(' ').filter_map(|part| part.split_once('='));
        addresses.find(|(name, _)| *name == server).expect("it has this server").1
    }

    /// Returns its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill can be started");
        assert!(sent.success());
    }

    /// Waits until it exits. Returns its exit status and output.
    pub fn ended(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let output = self.rest.recv_timeout(DEADLINE).expect("its output ends with it");
        (status, output)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // it may have exited already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
