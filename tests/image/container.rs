//! The image alone: as other deployments start it, and as its own user.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use weir_testing::repository;

use crate::docker::{Docker, docker, until};

/// A running container, removed on drop.
pub(crate) struct Container {
    docker: &'static Docker,
    name: String,
}

impl Container {
    /// Starts the image with further arguments of `docker run`, and the arguments of the program.
    pub(crate) fn start(docker: &'static Docker, options: &[&str], arguments: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("weir-test-{}-{}", process::id(), NEXT.fetch_add(1, Relaxed));
        let restricted = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"];
        let run =
            [&["run", "--detach", "--name", &name][..], &restricted, options, &[&docker.image], arguments];
        docker.run(&run.concat());
        Self { docker, name }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn inspect(&self, format: &str) -> String {
        self.docker.run(&["inspect", "--format", format, &self.name])
    }

    fn exec(&self, arguments: &[&str]) -> String {
        self.docker.run(&[&["exec", &self.name], arguments].concat())
    }

    pub(crate) fn logs(&self) -> String {
        let output = self.docker.try_run(&["logs", &self.name]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Gets a page from the container's address, as the kubelet's probes do. Returns the status and the body.
    pub(crate) fn get(&self, port: u16, path: &str) -> Option<(u16, String)> {
        let address = self.inspect("{{.NetworkSettings.IPAddress}}");
        let mut stream = TcpStream::connect((address.as_str(), port)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    pub(crate) fn await_ready(&self) {
        until("the readiness probe passes", || {
            assert_eq!(self.inspect("{{.State.Running}}"), "true", "{}", self.logs());
            self.get(8080, "/healthcheck").filter(|(status, _)| *status == 200)
        });
    }

    /// Stops it as the kubelet does, and returns its exit code.
    pub(crate) fn stop(&self) -> String {
        self.docker.run(&["stop", "--time", "45", &self.name]);
        self.inspect("{{.State.ExitCode}}")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.docker.try_run(&["rm", "--force", "--volumes", &self.name]);
    }
}

#[test]
fn the_image_serves_as_its_own_user_and_knows_its_health() {
    let Some(docker) = docker() else { return };
    let weir = Container::start(docker, &["--health-interval", "1s"], &[]);
    weir.await_ready();
    until("the engine knows that it is healthy", || {
        (weir.inspect("{{.State.Health.Status}}") == "healthy").then_some(())
    });
    assert_eq!(weir.inspect("{{.Config.User}}"), "65532:65532");
    // the rules of the image
    for outcome in ["OK", "OK", "OK"] {
        assert!(weir.exec(&["weir", "call", "--domain", "shop", "hello=world"]).starts_with(outcome));
    }
    let over = docker.try_run(&["exec", &weir.name, "weir", "call", "--domain", "shop", "hello=world"]);
    assert_eq!(over.status.code(), Some(2));
    let version = docker.run(&["run", "--rm", &docker.image, "--version"]);
    assert_eq!(version, concat!("weir ", env!("CARGO_PKG_VERSION")));
    assert_eq!(weir.stop(), "0", "{}", weir.logs());
}

#[test]
fn the_image_takes_the_place_of_the_one_in_istios_deployment() {
    let Some(docker) = docker() else { return };
    let rules = format!("{}:/data/ratelimit/config:ro", repository("config").display());
    let environment = [
        "LOG_LEVEL=debug",
        "REDIS_SOCKET_TYPE=tcp",
        // there is none: weir starts without it
        "REDIS_URL=redis:6379",
        "USE_STATSD=false",
        "RUNTIME_ROOT=/data",
        "RUNTIME_SUBDIRECTORY=ratelimit",
        "RUNTIME_WATCH_ROOT=false",
        "RUNTIME_IGNOREDOTFILES=true",
        "HOST=::",
        "GRPC_HOST=::",
    ];
    let variables: Vec<&str> = environment.iter().flat_map(|variable| ["--env", variable]).collect();
    let options = ["--entrypoint", "/bin/ratelimit", "--user", "65534:65534", "--volume", &rules];
    let weir = Container::start(docker, &[&options[..], &variables].concat(), &[]);
    weir.await_ready();
    assert_eq!(weir.exec(&["weir", "health"]), "OK");
    let reply = weir.exec(&["weir", "call", "--domain", "shop", "hello=world"]);
    assert!(reply.starts_with("OK\n  hello=world: OK, 2 of 3 left"), "{reply}");
    assert_eq!(weir.get(6070, "/rlconfig").map(|(status, _)| status), Some(200));
    assert_eq!(weir.stop(), "0", "{}", weir.logs());
}
