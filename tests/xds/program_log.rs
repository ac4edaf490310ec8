//! The program, whose log and memory a test follows while it runs.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use crate::{child::weir, control_plane::DEADLINE, local::get};

/// A running weir that may start without rules, killed on drop.
pub(crate) struct Program {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: String,
}

// === impl Program ===

impl Program {
    /// Starts with the rules of a control plane, to which it connects again at once.
    pub(crate) fn start(control_plane: SocketAddr, more: &[(&str, &str)]) -> Self {
        let url = control_plane.to_string();
        let variables = [
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", url.as_str()),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "20ms"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "20ms"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("BACKEND_TYPE", "memory"),
            ("HOST", "127.0.0.1"),
            ("DEBUG_HOST", "127.0.0.1"),
            ("GRPC_HOST", "127.0.0.1"),
            ("PORT", "0"),
            ("DEBUG_PORT", "0"),
            ("GRPC_PORT", "0"),
        ];
        let mut child = weir(&[], &[&variables, more].concat())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                // the test may have ended
                let _ = sender.send(line);
            }
        });
        Self { child, lines, seen: String::new() }
    }

    /// Waits for a line with `text` in its log, and returns it.
    pub(crate) fn until(&mut self, text: &str) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            let line = self.lines.recv_timeout(end.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|_| panic!("no line with '{text}':\n{}", self.seen));
            self.seen.push_str(&line);
            self.seen.push('\n');
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Waits until it listens, and returns the address of its HTTP port.
    pub(crate) fn http(&mut self) -> SocketAddr {
        const LISTENING: &str = "weir: listening ";
        let seen = self.seen.lines().find(|line| line.starts_with(LISTENING)).map(str::to_owned);
        let line = seen.unwrap_or_else(|| self.until(LISTENING));
        let address = line.split(' ').find_map(|part| part.strip_prefix("http="));
        address.and_then(|address| address.parse().ok()).expect("an address")
    }

    /// Returns the most memory that it has had, in megabytes.
    pub(crate) fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kilobytes.and_then(|number| number.parse::<u64>().ok()).expect("a number of kilobytes") / 1_000
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // it may have exited already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the value of a metric without labels.
pub(crate) async fn metric(http: SocketAddr, name: &str) -> u64 {
    let page = get(http, "/metrics").await;
    let value = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {page}"))
}
