//! The process of a server, which a test freezes, kills and starts again. Dropping it kills it.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A running server.
pub struct ServerProcess {
    child: Child,
    /// Starts it; `restart` does so again.
    pub command: Command,
}

// === impl ServerProcess ===

impl ServerProcess {
    /// Starts `command`, whose output is dropped.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: spawn(&mut command), command }
    }

    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_some()
    }

    /// Sends it a signal, such as `STOP`, after which it has stopped.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill can be started");
        assert!(sent.success());
        // the kernel stops its threads a moment later
        let late = Instant::now() + Duration::from_secs(10);
        while name == "STOP" && !self.has_stopped() {
            assert!(Instant::now() < late, "{pid} does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("its threads");
        // the state follows the name, which may have spaces and parentheses
        let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        threads
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok())
            .all(is_stopped)
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("its end");
    }

    /// Starts it again after its end.
    pub fn restart(&mut self) {
        self.child = spawn(&mut self.command);
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // it may have exited already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command) -> Child {
    command
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", command.get_program().display()))
}
