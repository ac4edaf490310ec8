//! A rolling restart of several weirs behind an Envoy under load: every call is decided, and limits hold.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    thread,
    time::Duration,
};

use weir_store::clock::{Clock as _, SystemClock};
use weir_testing::repository;

use crate::{
    compose::Composed,
    docker::{Docker, docker, until},
};

/// Each weir serves for 3 s after its health began to fail: longer than Envoy needs to notice. It starts to listen when
/// it has a connection to Redis: a weir without one counts alone. A busy machine is no failure of Redis.
const OVERRIDE: &str = "services:
  weir: { environment: { WEIR_STOP_DELAY: 3s, REDIS_STARTUP_MAX_ELAPSED_TIME: 60s, WEIR_DECISION_BUDGET: 10s } }
  envoy: { volumes: [\"FILE:/etc/envoy/envoy.yaml:ro\"] }
";

/// The limit of each value of `hello` in config/, per minute.
const LIMIT: u32 = 3;

/// What the load has seen.
#[derive(Default)]
struct Seen {
    decided: AtomicU32,
    rejected: AtomicU32,
}

/// Returns the example's Envoy, which checks the health of weir, and shows a call without a decision as the status 503.
fn envoy() -> String {
    let mut text = fs::read_to_string(repository("examples/compose/envoy.yaml")).expect("the file");
    for (old, new) in [
        (
            "\n                      failure_mode_deny: false",
            "\n                      failure_mode_deny: true\n                      status_on_error: { code: ServiceUnavailable }",
        ),
        // a busy machine is no failure of weir
        ("timeout: 0.05s", "timeout: 30s"),
        (
            "      dns_lookup_family: V4_ONLY",
            "      dns_lookup_family: V4_ONLY\n      dns_refresh_rate: 0.5s\n      health_checks:\n        - timeout: 10s\n          \
             interval: 0.2s\n          no_traffic_interval: 0.2s\n          unhealthy_threshold: 1\n          healthy_threshold: 1\n          \
             grpc_health_check: {}",
        ),
    ] {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        text = text.replace(old, new);
    }
    text
}

fn minute() -> u64 {
    SystemClock.now().as_nanos() / weir_limit::NANOS_PER_SECOND / 60
}

/// Sends five requests for each of ever new keys until `done`: three are admitted at most, and none is without a
/// decision.
fn load(composed: &Composed, thread: u32, seen: &Seen, done: &AtomicBool) {
    let mut key = 0;
    while !done.load(Relaxed) {
        key += 1;
        let header = format!("x-hello: rolling-{thread}-{key}");
        let begun = minute();
        let statuses: Vec<u16> =
            (0..5).map(|_| composed.get(&header).expect("a response of Envoy")).collect();
        let admitted = u32::try_from(statuses.iter().filter(|status| **status == 200).count()).expect("few");
        let decided = statuses.iter().all(|status| [200, 429].contains(status));
        // no key has two windows but one whose requests are in two minutes
        if !decided || admitted > LIMIT && minute() == begun {
            done.store(true, Relaxed);
            panic!("{statuses:?}");
        }
        seen.decided.fetch_add(5, Relaxed);
        seen.rejected.fetch_add(5 - admitted, Relaxed);
    }
}

/// Returns the calls that Envoy has made to a weir since its start.
fn calls(docker: &Docker, weir: &str) -> Option<u64> {
    let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}";
    let addresses = docker.run(&["inspect", "--format", format, weir]);
    let mut stream = addresses.split(' ').find_map(|address| TcpStream::connect((address, 8080)).ok())?;
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    let name = "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} ";
    page.lines().find_map(|line| line.strip_prefix(name)?.parse().ok())
}

#[test]
fn a_rolling_restart_fails_no_call_and_keeps_limits() {
    let Some(docker) = docker() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (bootstrap, more) = (folder.path().join("envoy.yaml"), folder.path().join("more.yaml"));
    fs::write(&bootstrap, envoy()).expect("a file");
    fs::write(&more, OVERRIDE.replace("FILE", bootstrap.to_str().expect("UTF-8"))).expect("a file");
    let Some(composed) = Composed::up(docker, more.to_str(), &["--scale", "weir=3"]) else { return };
    until("Envoy is there", || composed.get("x-hello: first").filter(|status| *status == 200));
    let weirs = composed.containers("weir");
    assert_eq!(weirs.len(), 3);
    let (seen, done) = (Seen::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for thread in 0..2 {
            let (composed, seen, done) = (&composed, &seen, &done);
            scope.spawn(move || load(composed, thread, seen, done));
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let await_calls = |weir: &str| {
                until("Envoy calls it", || {
                    assert!(!done.load(Relaxed), "the load ends");
                    calls(docker, weir).filter(|calls| *calls > 0)
                });
            };
            for weir in &weirs {
                await_calls(weir);
            }
            for weir in &weirs {
                let before = seen.decided.load(Relaxed);
                docker.run(&["restart", "--time", "41", weir]);
                assert!(seen.decided.load(Relaxed) > before, "the others decide meanwhile");
                await_calls(weir);
            }
            thread::sleep(Duration::from_secs(1));
        }));
        done.store(true, Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    for weir in &weirs {
        let restarts = docker.run(&["inspect", "--format", "{{.State.ExitCode}} {{.State.OOMKilled}}", weir]);
        assert_eq!(restarts, "0 false");
    }
    assert!(seen.rejected.load(Relaxed) > 0, "limits are reached");
}
