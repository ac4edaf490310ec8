//! A Redis of the benchmark's own, on a socket of its own. It stays where the client is, off the server's processor.

use std::{
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

/// Killed when it is dropped.
pub(crate) struct Redis {
    child: Child,
    dir: TempDir,
}

impl Redis {
    /// Starts one, if there is a `redis-server`.
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

    /// As `REDIS_URL` takes it.
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
