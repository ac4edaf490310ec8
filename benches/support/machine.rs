//! Assigns processors to client and server, so that they do not compete.

use std::{
    fs,
    process::{Command, Stdio},
};

/// The processors that this process may use.
#[derive(Clone, Debug)]
pub struct Machine {
    processors: Vec<u32>,
    /// Whether `taskset` is installed.
    can_pin: bool,
}

/// The number of processors of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    One,
    Two,
}

impl Machine {
    pub fn new() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let processors = list.map(|list| parse_list(list.trim())).unwrap_or_default();
        let found = Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
        Self { can_pin: found && processors.len() > 1, processors }
    }

    /// Returns a command that runs `program` on a server's processors.
    pub fn command(&self, program: &str, cores: Cores) -> Command {
        if !self.can_pin {
            return Command::new(program);
        }
        let count = match cores {
            Cores::One => 1,
            Cores::Two => 2,
        };
        let list = self.processors.iter().take(count).map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new("taskset");
        command.args(["-c", &list, program]);
        command
    }

    /// Moves this process, and the processes that it starts without [`Self::command`], to the last processor. Returns a
    /// description of the outcome.
    pub fn take_last(&self) -> String {
        let pid = std::process::id().to_string();
        let last = self.processors.last().map(u32::to_string).unwrap_or_default();
        let pin = || Command::new("taskset").args(["-pc", &last, &pid]).stdout(Stdio::null()).status();
        if self.can_pin && pin().is_ok_and(|status| status.success()) {
            let first = self.processors[0];
            format!("servers on processor {first}, the client on {last}")
        } else {
            "no process is bound to a processor: that needs taskset and two processors".into()
        }
    }
}

/// Parses a list of processors such as `0-3,8`.
fn parse_list(list: &str) -> Vec<u32> {
    let mut processors = Vec::new();
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<u32>(), to.parse()) {
            processors.extend(from..=to);
        }
    }
    processors
}
