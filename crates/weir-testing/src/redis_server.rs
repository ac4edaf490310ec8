//! A redis-server for one test.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use redis::{ConnectionLike as _, FromRedisValue};
use tempfile::TempDir;

use crate::{server_process::ServerProcess, wait::DEADLINE};

/// A running server. Dropping it kills it.
pub struct Server {
    process: ServerProcess,
    port: u16,
    accepts_tls_only: bool,
    password: Option<String>,
    dir: TempDir,
}

impl Server {
    /// Starts a server with defaults, except that it writes nothing to disk.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further arguments; `{dir}` stands for a directory of its own and `{port}` for its port.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::launch(arguments, None, &[])
    }

    /// Starts a server that accepts TLS only, with a certificate and its key; it requires client certificates if
    /// `mutual`.
    pub fn start_with_tls(certificate: &Path, key: &Path, ca: &Path, mutual: bool) -> Self {
        let text = |path: &Path| path.display().to_string();
        Self::start_with(&[
            "--port",
            "0",
            "--tls-port",
            "{port}",
            "--unixsocket",
            "{dir}/redis.sock",
            "--tls-cert-file",
            &text(certificate),
            "--tls-key-file",
            &text(key),
            "--tls-ca-cert-file",
            &text(ca),
            "--tls-auth-clients",
            if mutual { "yes" } else { "no" },
        ])
    }

    /// Starts a server that requires `password`.
    pub fn start_with_password(password: &str, arguments: &[&str]) -> Self {
        Self::launch(&[&["--requirepass", password][..], arguments].concat(), Some(password), &[])
    }

    /// Starts a sentinel with `configuration`, which requires `password` if there is one.
    pub fn start_sentinel(configuration: &str, password: Option<&str>) -> Self {
        Self::launch(&[configuration], password, &["--sentinel"])
    }

    fn launch(arguments: &[&str], password: Option<&str>, mode: &[&str]) -> Self {
        // another process may take the free port first; then the next attempt uses another port
        for _ in 0..5 {
            let dir = tempfile::tempdir().expect("a directory");
            let port = free_port();
            let filled = |text: &str| {
                text.replace("{dir}", &dir.path().display().to_string()).replace("{port}", &port.to_string())
            };
            let mut all: Vec<String> = Vec::new();
            if mode.is_empty() {
                all.extend(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"].map(str::to_owned));
                if !arguments.contains(&"--port") {
                    all.extend(["--port".to_owned(), port.to_string()]);
                }
                all.extend(arguments.iter().map(|argument| filled(argument)));
            } else {
                let path = dir.path().join("sentinel.conf");
                let text = format!("port {port}\nbind 127.0.0.1\n{}\n", filled(arguments[0]));
                std::fs::write(&path, text).expect("a file");
                all.push(path.display().to_string());
                all.extend(mode.iter().map(|argument| (*argument).to_owned()));
            }
            let mut command = Command::new("redis-server");
            command.args(&all).current_dir(dir.path());
            let mut server = Self {
                process: ServerProcess::start(command),
                port,
                accepts_tls_only: arguments.contains(&"--tls-port"),
                password: password.map(str::to_owned),
                dir,
            };
            if server.wait_until_up() {
                return server;
            }
        }
        panic!("redis-server does not start with {arguments:?}")
    }

    /// Waits until it replies. Returns false if it exits before that.
    fn wait_until_up(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < DEADLINE {
            if self.process.has_exited() {
                return false;
            }
            if self.try_connection().is_some_and(|mut connection| connection.check_connection()) {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("redis-server does not reply");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn try_connection(&self) -> Option<redis::Connection> {
        let socket = self.path("redis.sock");
        let auth = self.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"));
        let url = if self.accepts_tls_only {
            format!("unix://{}", socket.display())
        } else {
            format!("redis://{auth}127.0.0.1:{}", self.port)
        };
        redis::Client::open(url).expect("a URL").get_connection().ok()
    }

    /// Opens a connection for the test.
    pub fn connection(&self) -> redis::Connection {
        self.try_connection().expect("it listens")
    }

    /// Sends a command, such as `GET key`, and returns the reply.
    pub fn send<T: FromRedisValue>(&self, command: &[&str]) -> T {
        redis::cmd(command[0]).arg(&command[1..]).query(&mut self.connection()).expect("a reply")
    }

    /// Sends it a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Returns how far it has come in the stream of writes, by a field of `INFO`. `WAIT` knows only what its own
    /// connection has written.
    pub fn offset(&self, field: &str) -> u64 {
        let info: String = self.send(&["INFO", "replication"]);
        info.lines().find_map(|line| line.strip_prefix(field)?.parse().ok()).expect("it replicates")
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port, without its data.
    pub fn restart(&mut self) {
        self.process.restart();
        assert!(self.wait_until_up(), "it does not start again");
    }
}

/// Returns a free port whose cluster bus port, 10,000 above it, is free too.
pub fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        if port < 55_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}
