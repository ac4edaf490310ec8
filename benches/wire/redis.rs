//! A Redis server for the benchmark, on its own socket and on the client's processor.

use std::{
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

/// A running Redis server, killed on drop.
pub(crate) struct Redis {
    child: Child,
    dir: TempDir,
}

impl Redis {
    /// Starts a server, if `redis-server` is installed.
    pub(crate) fn start() -> Option<Self> {
        let dir = tempfile::tempdir().ok()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(dir.path().join("redis.sock"));
        let child = command.stdout(Stdio::null()).spawn().ok()?;
        let mut redis = Self { child, dir };
        while UnixStream::connect(redis.url()).is_err() {
            if redis.child.try_wait().ok()?.is_some() {
                return None;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Some(redis)
    }

    /// Returns the value for `REDIS_URL`.
    pub(crate) fn url(&self) -> String {
        self.dir.path().join("redis.sock").display().to_string()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
