//! The process of a server, which a test freezes, kills and starts again. Dropping it kills it.

use std::process::{Child, Command, Stdio};

/// A running server.
pub(crate) struct ServerProcess {
    child: Child,
    /// Starts it; `restart` does so again.
    pub(crate) command: Command,
}

// === impl ServerProcess ===

impl ServerProcess {
    /// Starts `command`, whose output is dropped.
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: spawn(&mut command), command }
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_some()
    }

    /// Sends it a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill can be started");
        assert!(sent.success());
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("its end");
    }

    /// Starts it again after its end.
    pub(crate) fn restart(&mut self) {
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
