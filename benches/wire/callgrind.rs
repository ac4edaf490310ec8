//! Instructions of a request, as valgrind counts them: those of the server's own code, not the kernel's, and hardly
//! different from run to run.

use std::{
    fs,
    process::{Command, Stdio},
};

use super::{
    client::{Client, Load, Until},
    connection::Fault,
    message::Asked,
    server::Server,
};

/// Requests of the run that is subtracted from the other, and of that.
const FEW: u64 = 2_000;
const MANY: u64 = 12_000;

pub(crate) fn is_here() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Instructions that a request costs the server that `start` starts behind the given wrapper: what a run with more
/// requests costs more than one with few.
pub(crate) fn instructions(asked: Asked, start: impl Fn(&[&str]) -> Server) -> Result<u64, Fault> {
    let few = total(FEW, asked, &start)?;
    let many = total(MANY, asked, &start)?;
    Ok(many.saturating_sub(few) / (MANY - FEW))
}

fn total(requests: u64, asked: Asked, start: impl Fn(&[&str]) -> Server) -> Result<u64, Fault> {
    let dir = tempfile::tempdir()?;
    let log = dir.path().join("log");
    let (out, log_file) = (dir.path().join("out"), format!("--log-file={}", log.display()));
    let out_file = format!("--callgrind-out-file={}", out.display());
    let server = start(&["valgrind", "--tool=callgrind", &out_file, &log_file]);
    let load = Load { connections: 1, in_flight: 64 };
    let mut client = Client::connect(&server.target, load, asked)?;
    client.closed(Until::Requests(requests))?;
    drop(client);
    server.stop();
    let log = fs::read_to_string(&log)?;
    let collected = log.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    collected.ok_or_else(|| Fault::Unexpected(format!("valgrind did not say what it counted: {log}")))
}
