//! The weir under test: the real program, serving the rules of a folder.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{process::Process, wait};

/// A running weir.
pub(crate) struct Weir {
    process: Process,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) debug: SocketAddr,
}

impl Weir {
    /// Serves the rules in `config` with `settings` as environment variables. Writes its output to `folder`.
    pub(crate) fn start(config: &Path, settings: &[(&str, &str)], folder: &Path) -> Self {
        let mut command = Command::new(program());
        command
            .args(["serve", "--config"])
            .arg(config)
            .env_clear()
            .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")])
            .envs([("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0"), ("LOG_LEVEL", "INFO")])
            .envs(settings.iter().copied());
        let mut process = Process::start("weir", &mut command, folder);
        let [grpc, http, debug] = wait::until("weir listens", || {
            process.assert_running();
            listening(&process.output())
        });
        Self { process, grpc, http, debug }
    }

    pub(crate) fn output(&self) -> String {
        self.process.output()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }
}

pub(super) fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_weir"))
}

/// Returns the addresses of gRPC, HTTP and the debug port from the line that weir prints once it listens, as text or JSON.
pub(super) fn listening(output: &str) -> Option<[SocketAddr; 3]> {
    // a line without its end may be half an address
    let mut lines = output.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::trim);
    let line = lines.find(|line| line.starts_with("weir: listening ") || line.contains("\"listening\""))?;
    let address = |name: &str| {
        let text = line.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let json = || Some(serde_json::from_str::<Value>(line).ok()?[name].as_str()?.to_owned());
        text.map(str::to_owned).or_else(json)?.parse().ok()
    };
    Some([address("grpc")?, address("http")?, address("debug")?])
}
