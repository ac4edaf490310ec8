//! Counts the instructions per request with valgrind: those of the server without the kernel, nearly constant from run
//! to run.

use std::{
    fs,
    process::{Command, Stdio},
};

use super::{
    client::{Client, Load, Until},
    connection::Fault,
    message::Workload,
    server::Server,
};

/// The requests of the short run, which is subtracted from the long one, and of the long one.
const FEW: u64 = 2_000;
const MANY: u64 = 12_000;

pub(crate) fn is_installed() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Returns the instructions per request of the server that `start` starts in the given wrapper: the difference between
/// a long and a short run.
pub(crate) fn instructions(workload: Workload, start: impl Fn(&[&str]) -> Server) -> Result<u64, Fault> {
    let few = total(FEW, workload, &start)?;
    let many = total(MANY, workload, &start)?;
    Ok(many.saturating_sub(few) / (MANY - FEW))
}

fn total(requests: u64, workload: Workload, start: impl Fn(&[&str]) -> Server) -> Result<u64, Fault> {
    let dir = tempfile::tempdir()?;
    let log = dir.path().join("log");
    let (out, log_file) = (dir.path().join("out"), format!("--log-file={}", log.display()));
    let out_file = format!("--callgrind-out-file={}", out.display());
    let server = start(&["valgrind", "--tool=callgrind", &out_file, &log_file]);
    let load = Load { connections: 1, in_flight: 64 };
    let mut client = Client::connect(&server.target, load, workload)?;
    client.closed(Until::Requests(requests))?;
    drop(client);
    server.stop();
    let log = fs::read_to_string(&log)?;
    let collected = log.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    collected.ok_or_else(|| Fault::Unexpected(format!("a log of valgrind without a count: {log}")))
}
