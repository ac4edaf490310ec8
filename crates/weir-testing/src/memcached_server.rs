//! A memcached for one test.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{server_process::ServerProcess, wait::DEADLINE};

/// A running server. Dropping it kills it.
pub struct Server {
    process: ServerProcess,
    port: u16,
    _dir: TempDir,
}

// === impl Server ===

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("port");
        let mut command = Command::new("memcached");
        // the user matters only to root
        command.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p", "-1"]).args(arguments);
        command.env("MEMCACHED_PORT_FILENAME", &file);
        let mut server = Self { process: ServerProcess::start(command), port: 0, _dir: dir };
        let begun = Instant::now();
        while server.port == 0 {
            assert!(!server.process.has_exited(), "memcached has exited with {arguments:?}");
            assert!(begun.elapsed() < DEADLINE, "memcached does not start with {arguments:?}");
            // written at once, with a line end
            let text = fs::read_to_string(&file).unwrap_or_default();
            let port = text.strip_prefix("TCP INET: ").and_then(|text| text.strip_suffix('\n'));
            server.port = port.map_or(0, |port| port.parse().expect("a port"));
            thread::sleep(Duration::from_millis(5));
        }
        // the last one applies
        server.process.command.args(["-p", &server.port.to_string()]);
        server.wait_until_up();
        server
    }

    fn wait_until_up(&mut self) {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(!self.process.has_exited(), "memcached has exited");
            assert!(begun.elapsed() < DEADLINE, "memcached does not listen");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends `command` as a client of the text protocol, without its line end. Returns the first line of the reply.
    pub fn send(&self, command: &str) -> String {
        let mut stream = BufReader::new(self.connect());
        write!(stream.get_mut(), "{command}\r\n").expect("it takes a command");
        let mut line = String::new();
        stream.read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<String> {
        let mut stream = self.connect();
        write!(stream, "get {key}\r\nquit\r\n").expect("it takes a command");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        let value = reply.strip_prefix("VALUE ")?.split("\r\n").nth(1);
        Some(value.expect("a value after its head").to_owned())
    }

    /// Returns the number of its items.
    pub fn items(&self) -> u64 {
        let mut stream = self.connect();
        write!(stream, "stats\r\nquit\r\n").expect("it takes a command");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        let items = reply.lines().find_map(|line| line.strip_prefix("STAT curr_items "));
        items.expect("it is among the stats").trim().parse().expect("a number")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout that is not zero");
        stream
    }

    /// Sends it a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port, without its data.
    pub fn restart(&mut self) {
        self.process.restart();
        self.wait_until_up();
    }
}
