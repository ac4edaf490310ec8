//! A child process that does not outlive its test, and whose output is shown if the test fails.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};

/// A running program.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Starts `command`, and writes its output to a file in `folder`.
    pub(crate) fn start(name: &'static str, command: &mut Command, folder: &Path) -> Self {
        let output = folder.join(format!("{name}.log"));
        let file = File::create(&output).expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self { name, child, output }
    }

    /// Returns its output so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Fails the test at once if the program has ended.
    pub(crate) fn assert_running(&mut self) {
        if let Some(status) = self.child.try_wait().expect("its status") {
            panic!("{} ended: {status}", self.name);
        }
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let sent = Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status();
        assert!(sent.expect("kill can be started").success());
    }

    /// Returns its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("its status")
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("its status");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // it may have ended already, and a panic here would hide the test's own
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- output of {} ---\n{}", self.name, self.output());
        }
    }
}
