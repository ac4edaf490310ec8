//! The Envoy in front of weir.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{
    http::{self, HttpRequest},
    process::Process,
    wait,
};

/// The installed version; the Makefile has the same.
const VERSION: &str = "1.40.0";

/// A running Envoy.
pub(crate) struct Envoy {
    process: Process,
    /// Where it shows its own metrics.
    pub(crate) admin: SocketAddr,
    /// The address of its first listener.
    pub(crate) address: SocketAddr,
}

impl Envoy {
    /// Starts Envoy with `bootstrap`, whose ports are all 0. Writes its files to `folder`.
    pub(crate) fn start(bootstrap: &Path, folder: &Path) -> Self {
        Self::with_workers(1, bootstrap, folder)
    }

    /// Like [`Self::start`], with so many threads.
    pub(crate) fn with_workers(workers: usize, bootstrap: &Path, folder: &Path) -> Self {
        let admin_file = folder.join("admin-address");
        let mut command = Command::new(program());
        command
            .arg("--config-path")
            .arg(bootstrap)
            .arg("--admin-address-path")
            .arg(&admin_file)
            // several run at a time, and hot restarts would make them share memory
            .args(["--disable-hot-restart", "--concurrency", &workers.to_string(), "--log-level", "warning"]);
        let mut process = Process::start("envoy", &mut command, folder);
        let admin: SocketAddr = wait::until("Envoy has an admin address", || {
            process.assert_running();
            fs::read_to_string(&admin_file).ok()?.trim().parse().ok()
        });
        let address = wait::until("Envoy listens", || {
            process.assert_running();
            first_listener(admin)
        });
        Self { process, admin, address }
    }
}

impl Envoy {
    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.process.terminate();
    }

    pub(crate) fn output(&self) -> String {
        self.process.output()
    }
}

/// Returns the address of the first listener, once Envoy is ready.
fn first_listener(admin: SocketAddr) -> Option<SocketAddr> {
    let ready = http::try_send(admin, &HttpRequest::get("/ready")).ok()?;
    if ready.status != 200 {
        return None;
    }
    let listeners = http::try_send(admin, &HttpRequest::get("/listeners?format=json")).ok()?;
    let listeners: Value = serde_json::from_str(&listeners.body).ok()?;
    let mut listeners = listeners.get("listener_statuses")?.as_array()?.iter();
    // an internal listener has no such address
    let socket = listeners.find_map(|listener| listener.pointer("/local_address/socket_address"))?;
    let port = u16::try_from(socket.get("port_value")?.as_u64()?).ok()?;
    Some(SocketAddr::new(socket.get("address")?.as_str()?.parse().ok()?, port))
}

/// Returns the program named by the variable `ENVOY`, or the one that `make test` installs.
fn program() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = env::var_os("ENVOY")
        .map_or_else(|| here.join(format!("target/tools/envoy-{VERSION}")), PathBuf::from);
    assert!(
        program.exists(),
        "there is no Envoy at {}: `make test` (or `make tools`) installs it",
        program.display()
    );
    program
}
