//! Starting without a usable Redis, and reports of its state in the log and in health.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    child::{Serving, run, stderr, weir},
    support::{DEADLINE, MonitoredMaster, Server, free_port, until},
};

const NEEDED: (&str, &str) = ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true");

fn rules() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let text = "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { requests: 9, per: 365d }\n";
    fs::write(dir.path().join("rules.yaml"), text).expect("a file in it");
    dir
}

fn start(rules: &TempDir, variables: &[(&str, &str)]) -> Serving {
    let fast = [("WEIR_STOP_DELAY", "0"), ("REDIS_STARTUP_MAX_INTERVAL", "100ms")];
    Serving::start(rules.path().to_str().expect("a plain path"), &[&fast, variables].concat())
}

/// Returns the response of the health check.
fn health(weir: &Serving) -> String {
    let mut stream = TcpStream::connect(weir.address("http")).expect("it listens");
    stream.write_all(b"GET /healthcheck HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

fn await_health(weir: &Serving, status: &str) {
    let begun = Instant::now();
    while !health(weir).starts_with(&format!("HTTP/1.1 {status} ")) {
        assert!(begun.elapsed() < DEADLINE, "not {status} in time");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Stops `weir`, and returns the lines that it has written.
fn stopped(weir: Serving) -> Vec<String> {
    weir.signal("TERM");
    let (status, output) = weir.ended();
    assert!(status.success(), "{output}");
    output.lines().map(str::to_owned).collect()
}

/// Returns the lines about the connection to Redis.
fn about_redis(lines: &[String]) -> Vec<&String> {
    lines.iter().filter(|line| line.contains("redis")).collect()
}

#[test]
fn a_wrong_host_or_password_is_an_error_at_once_and_unhealthy_if_so_configured() {
    let rules = rules();
    let guarded = Server::start_with_password("right", &[]);
    let nowhere = format!("127.0.0.1:{}", free_port());
    let server = format!("127.0.0.1:{}", guarded.port());
    for (url, password, reason, right) in [
        (&nowhere, "right", "Connection refused", ""),
        (&server, "wrong", "WRONGPASS", "(correct REDIS_AUTH, or the user and password in REDIS_URL)"),
        (&server, "", "NOAUTH", "(set REDIS_AUTH to the password, or to user:password)"),
    ] {
        let variables = [("REDIS_URL", &**url), ("REDIS_AUTH", password), NEEDED];
        let weir = start(&rules, &variables);
        let response = health(&weir);
        assert!(response.starts_with("HTTP/1.1 500 "), "{response}");
        thread::sleep(Duration::from_secs(2));
        let lines = stopped(weir);
        let lines = about_redis(&lines);
        assert_eq!(lines.len(), 1, "{lines:?}");
        for part in ["ERROR", "cannot connect to redis", url, reason, right] {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
        let weir = start(&rules, &variables[..2]);
        assert!(health(&weir).starts_with("HTTP/1.1 200 "), "health does not depend on Redis by default");
    }
}

/// Returns the error of a start that needs a connection and gets none.
fn refused(rules: &TempDir, variables: &[(&str, &str)]) -> String {
    let arguments = ["--config", rules.path().to_str().expect("a plain path"), "--grpc-port", "0"];
    let within = [("REDIS_STARTUP_MAX_ELAPSED_TIME", "300ms")];
    let output = run(
        &[&arguments[..], &["--port", "0", "--debug-port", "0"]].concat(),
        &[&within, variables].concat(),
    );
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn the_log_names_the_variable_of_each_refused_password() {
    let (rules, open) = (rules(), Server::start());
    let guarded = Server::start_with_password("right", &[]);
    // Redis 5 and many proxies lack this command
    let old = Server::start_with_password("right", &["--rename-command", "HELLO", ""]);
    let sentinel = Server::start_sentinel("requirepass right", Some("right"));
    let at = |server: &Server| format!("127.0.0.1:{}", server.port());
    let (open, guarded, old, sentinel) = (at(&open), at(&guarded), at(&old), at(&sentinel));
    let (monitored, with_wrong) =
        (format!("mymaster,{sentinel}"), format!("mymaster,redis://:wr0ng@{sentinel}"));
    let cluster = format!("redis://:wr0ng@{guarded}");
    let sentinels = ("REDIS_TYPE", "SENTINEL");
    let (main, second) = (("REDIS_URL", &*open), ("REDIS_PERSECOND", "true"));
    for (variables, right) in [
        (&[("REDIS_URL", &*old), ("REDIS_AUTH", "wr0ng")][..], "(correct REDIS_AUTH, or the user"),
        (&[sentinels, ("REDIS_URL", &monitored), ("REDIS_AUTH", "right")], "(set REDIS_SENTINEL_AUTH to"),
        (&[sentinels, ("REDIS_URL", &with_wrong)], "(correct REDIS_SENTINEL_AUTH, or the user"),
        (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", &cluster)], "(correct REDIS_AUTH, or the user"),
        (&[main, second, ("REDIS_PERSECOND_URL", &guarded)], "(set REDIS_PERSECOND_AUTH to the password"),
        (
            &[main, second, ("REDIS_PERSECOND_TYPE", "SENTINEL"), ("REDIS_PERSECOND_URL", &with_wrong)],
            "(correct REDIS_PERSECOND_SENTINEL_AUTH, or the user and password in REDIS_PERSECOND_URL)",
        ),
    ] {
        let error = refused(&rules, variables);
        assert!(error.contains(right) && !error.contains("wr0ng"), "{variables:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_urls_have_the_passwords_of_their_servers() {
    let rules = rules();
    let monitored = MonitoredMaster::start(Some("s3cret")).await;
    let node = Server::start_with_password("s3cret", &["--cluster-enabled", "yes"]);
    node.send::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("the cluster is up", async || {
        node.send::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    })
    .await;
    let urls = |servers: &[Server]| {
        let urls: Vec<String> =
            servers.iter().map(|server| format!("redis://:s3cret@127.0.0.1:{}", server.port())).collect();
        urls.join(",")
    };
    let sentinels = format!("mymaster,{}", urls(&monitored.sentinels));
    let cluster = urls(std::slice::from_ref(&node));
    for (kind, url) in [("SENTINEL", &sentinels), ("CLUSTER", &cluster)] {
        // without a connection it would not start
        let within = ("REDIS_STARTUP_MAX_ELAPSED_TIME", "20s");
        let weir = start(&rules, &[("REDIS_TYPE", kind), ("REDIS_URL", url), within, NEEDED]);
        await_health(&weir, "200");
        let lines = stopped(weir);
        assert!(about_redis(&lines).is_empty(), "{kind}: {lines:?}");
    }
}

#[test]
fn a_loss_and_its_end_are_logged_in_words_at_the_same_level() {
    let rules = rules();
    let mut server = Server::start();
    let weir = start(&rules, &[("REDIS_URL", &format!("127.0.0.1:{}", server.port())), NEEDED]);
    await_health(&weir, "200");
    server.kill();
    await_health(&weir, "500");
    server.restart();
    await_health(&weir, "200");
    let lines = stopped(weir);
    let lines = about_redis(&lines);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, message) in lines.iter().zip(["no connection to redis; deciding by", "redis connected again"])
    {
        assert!(line.contains("WARN") && line.contains(message) && !line.contains('{'), "{line}");
    }
}

/// The connection stands while a server hangs, so the log must not send anyone to look for a lost one.
#[test]
fn a_redis_that_hangs_is_logged_as_one_that_does_not_reply() {
    let rules = rules();
    let server = Server::start();
    let weir = start(&rules, &[("REDIS_URL", &format!("127.0.0.1:{}", server.port())), NEEDED]);
    await_health(&weir, "200");
    server.signal("STOP");
    await_health(&weir, "500");
    server.signal("CONT");
    await_health(&weir, "200");
    let lines = stopped(weir);
    let lines = about_redis(&lines);
    for (line, message) in
        lines.iter().zip(["redis is connected and does not reply; deciding by", "redis replies again"])
    {
        assert!(line.contains("WARN") && line.contains(message), "{lines:?}");
    }
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn without_a_connection_within_the_given_time_weir_exits_with_an_error() {
    let rules = rules();
    let dir = rules.path().to_str().expect("a plain path");
    let url = format!("127.0.0.1:{}", free_port());
    let arguments = ["--config", dir, "--grpc-port", "0", "--port", "0", "--debug-port", "0"];
    let output = run(&arguments, &[("REDIS_URL", &url), ("REDIS_STARTUP_MAX_ELAPSED_TIME", "300ms")]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    let expected = "cannot connect to redis within 300ms (REDIS_STARTUP_MAX_ELAPSED_TIME): ";
    assert!(text.contains(expected) && text.contains("Connection refused"), "{text}");
    assert!(!text.contains("listening"), "{text}");

    // with a Redis it serves, connected from the first request
    let server = Server::start();
    let url = format!("127.0.0.1:{}", server.port());
    let weir = start(&rules, &[("REDIS_URL", &url), ("REDIS_STARTUP_MAX_ELAPSED_TIME", "1h"), NEEDED]);
    await_health(&weir, "200");
    assert!(about_redis(&stopped(weir)).is_empty());
}

#[test]
fn a_signal_ends_the_wait_for_redis() {
    let rules = rules();
    let dir = rules.path().to_str().expect("a plain path");
    let url = format!("127.0.0.1:{}", free_port());
    let mut child =
        weir(&["--config", dir], &[("REDIS_URL", &url), ("REDIS_STARTUP_MAX_ELAPSED_TIME", "1h")])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
    let mut line = String::new();
    let mut output = BufReader::new(child.stderr.take().expect("it is piped"));
    output.read_line(&mut line).expect("a line");
    assert!(line.contains("ERROR") && line.contains("cannot connect to redis; retrying for"), "{line}");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill can be started").success());
    assert_eq!(child.wait().expect("its status").code(), Some(0));
}
