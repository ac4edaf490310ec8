//! A Docker engine, and the image under test.

use std::{
    path::PathBuf,
    process::{Command, Output},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use weir_testing::repository;

use crate::skipped::skipped;

/// The version of Envoy that `make tools` installs; the Makefile has the same.
const ENVOY: &str = "target/tools/envoy-1.40.0";

/// How long to wait for a condition, which is enough for a busy machine.
const TIMEOUT: Duration = Duration::from_mins(2);

/// A Docker client that can build with `BuildKit`, and the image built with it from the Dockerfile.
#[derive(Clone, Debug)]
pub(crate) struct Docker {
    client: PathBuf,
    pub(crate) image: String,
}

/// Returns the engine with the image, or none if there is no engine. Tells so, because the test then shows nothing.
pub(crate) fn docker() -> Option<&'static Docker> {
    static DOCKER: OnceLock<Option<Docker>> = OnceLock::new();
    let docker = DOCKER.get_or_init(|| {
        let client = client()?;
        // several checkouts may be tested at a time; the images of the last test are replaced
        let tag = repository("").file_name().expect("a name").to_string_lossy().to_lowercase();
        let docker = Docker { client, image: format!("weir-test:{tag}") };
        let prepared = Command::new(repository("scripts/test-images.sh"))
            .arg(&docker.client)
            .args([env!("CARGO_BIN_EXE_weir"), &tag, ENVOY])
            .current_dir(repository(""))
            .output()
            .expect("the script can be started");
        assert!(prepared.status.success(), "{}", String::from_utf8_lossy(&prepared.stderr));
        let base = String::from_utf8_lossy(&prepared.stdout);
        let [binary, base] = [format!("BINARY=weir-test-binary:{tag}"), format!("BASE={}", base.trim())];
        let label = ["--label", "weir-test=image"];
        docker.run(
            &[
                &["build", "--quiet", "--build-arg", &binary, "--build-arg", &base, "--tag", &docker.image],
                &label[..],
                &["."],
            ]
            .concat(),
        );
        docker.run(&["image", "prune", "--force", "--filter", "label=weir-test"]);
        Some(docker)
    });
    if docker.is_none() {
        skipped("the image", "there is no Docker engine whose client builds with BuildKit");
    }
    docker.as_ref()
}

/// Returns the client that builds the image, if there is one.
fn client() -> Option<PathBuf> {
    let output =
        Command::new(repository("scripts/docker-client.sh")).output().expect("the script can be started");
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then(|| found.into())
}

/// Runs `make` in the repository's root, as a user would.
#[track_caller]
pub(crate) fn make(arguments: &[&str]) {
    let mut make = Command::new("make");
    make.args(arguments).current_dir(repository("")).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    let output = make.output().expect("make can be started");
    assert!(output.status.success(), "make {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Calls `poll` until it returns a value, and returns that.
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

// === impl Docker ===

impl Docker {
    /// Runs the client in the repository's root.
    pub(crate) fn try_run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.client);
        command.args(arguments).current_dir(repository("")).env("DOCKER_BUILDKIT", "1");
        command.output().expect("the client can be started")
    }

    /// Runs a script of the repository with the client as its argument. Returns what it prints.
    pub(crate) fn script(&self, script: &str) -> String {
        let mut command = Command::new(repository(script));
        let output = command.arg(&self.client).output().expect("the script can be started");
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs the client, and returns what it prints, without spaces around it.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.try_run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}
