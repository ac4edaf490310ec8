//! compose.yaml: weir with Redis and Envoy, on networks that the test cuts and joins.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use weir_testing::repository;

use crate::{
    docker::{Docker, docker, until},
    skipped::skipped,
};

/// The running services of compose.yaml, removed on drop.
pub(crate) struct Composed {
    docker: &'static Docker,
    program: Vec<&'static str>,
    /// The compose files.
    files: Vec<String>,
    name: String,
    envoy: String,
}

/// Returns the command of Compose: the plug-in, or the older program.
fn compose(docker: &Docker) -> Option<Vec<&'static str>> {
    if docker.try_run(&["compose", "version"]).status.success() {
        return Some(vec!["docker", "compose"]);
    }
    let program = Command::new("docker-compose").arg("version").output();
    program.is_ok_and(|output| output.status.success()).then(|| vec!["docker-compose"])
}

impl Composed {
    /// Starts the services of compose.yaml, changed by the file `more` if there is one. Returns none if there is no
    /// Compose.
    pub(crate) fn up(docker: &'static Docker, more: Option<&str>, arguments: &[&str]) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Some(program) = compose(docker) else {
            skipped("compose.yaml", "there is no Compose");
            return None;
        };
        let name = format!("weir-test-{}-{}", process::id(), NEXT.fetch_add(1, Relaxed));
        let files = ["compose.yaml"].into_iter().chain(more);
        let files = files.flat_map(|file| ["--file".to_owned(), file.to_owned()]).collect();
        let mut composed = Self { docker, program, files, name, envoy: String::new() };
        composed.run(&[&["up", "--detach", "--no-build"], arguments].concat());
        composed.envoy = composed.run(&["port", "envoy", "10000"]);
        Some(composed)
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(self.program[0])
            .args(&self.program[1..])
            .args(&self.files)
            .args(["--project-name", &self.name])
            .args(arguments)
            .current_dir(repository(""))
            .envs([("WEIR_IMAGE", self.docker.image.as_str()), ("ENVOY_PORT", "0")])
            .output()
            .expect("Compose can be started");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns the ids of the containers of a service.
    pub(crate) fn containers(&self, service: &str) -> Vec<String> {
        self.run(&["ps", "--quiet", service]).lines().map(str::to_owned).collect()
    }

    /// Sends a request through Envoy, and returns the status.
    pub(crate) fn get(&self, header: &str) -> Option<u16> {
        let mut stream = TcpStream::connect(&self.envoy).ok()?;
        write!(stream, "GET / HTTP/1.1\r\nhost: a\r\n{header}\r\nconnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.split(' ').nth(1)?.parse().ok()
    }

    /// Sends a request to one weir by its own program, and returns the exit code: 0 admitted, 2 over its limit.
    fn call(&self, weir: &str, arguments: &[&str]) -> Option<i32> {
        let call = [&["exec", weir, "weir", "call", "--domain", "shop"], arguments].concat();
        self.docker.try_run(&call).status.code()
    }
}

impl Drop for Composed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.run(&["logs"]));
        }
        self.run(&["down", "--volumes", "--timeout", "10"]);
    }
}

#[test]
fn compose_limits_through_envoy_and_survives_partitions() {
    let Some(docker) = docker() else { return };
    let Some(composed) = Composed::up(docker, None, &["--scale", "weir=2"]) else { return };
    until("Envoy is there", || composed.get("x-other: a").filter(|status| *status == 200));
    let weirs = composed.containers("weir");
    assert_eq!(weirs.len(), 2);
    for weir in &weirs {
        until("weir is healthy", || {
            let status = docker.run(&["inspect", "--format", "{{.State.Health.Status}}", weir]);
            (status == "healthy").then_some(())
        });
    }
    // what one weir has used up, the other rejects
    let decides = |weir: &str, key: &str| composed.call(weir, &["--hits", "1", &format!("hello={key}")]);
    let await_shared = |when: &str| {
        let mut keys = 0;
        until("the counts are shared", || {
            keys += 1;
            let key = format!("{when}-{keys}");
            let admitted = (0..4).filter(|_| decides(&weirs[0], &key) == Some(0)).count();
            (admitted == 3 && decides(&weirs[1], &key) == Some(2)).then_some(())
        });
    };
    await_shared("started");
    // at most three a minute, whichever weir is asked: more than three pass only if a minute passes
    let statuses: Vec<Option<u16>> = (0..8).map(|_| composed.get("x-hello: world")).collect();
    assert!(statuses.contains(&Some(200)) && statuses.contains(&Some(429)), "{statuses:?}");

    // one weir without Redis, then all of them: decisions go on, and nothing is an error
    let store = format!("{}_store", composed.name);
    docker.run(&["network", "disconnect", &store, &weirs[0]]);
    assert_eq!((decides(&weirs[0], "a"), decides(&weirs[1], "b")), (Some(0), Some(0)));
    docker.run(&["network", "connect", &store, &weirs[0]]);
    let redis = composed.containers("redis").remove(0);
    docker.run(&["network", "disconnect", &store, &redis]);
    assert_eq!((decides(&weirs[0], "c"), decides(&weirs[1], "c")), (Some(0), Some(0)));
    let over = |weir: &str| (0..4).any(|_| decides(weir, "d") == Some(2));
    assert!(over(&weirs[0]) && over(&weirs[1]), "limits are kept without Redis as well");
    docker.run(&["network", "connect", "--alias", "redis", &store, &redis]);
    // joined again
    await_shared("rejoined");
}
