//! The program with Memcached: its settings, its log, its health and its metrics, and the commands about rules.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Instant,
};

use tempfile::TempDir;
use tonic::transport::Channel;
use weir_harness::wire::{descriptor, hits, refund, request};
use weir_proto::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use weir_testing::{
    child::{Serving, run, stderr, stdout},
    memcached_server::Server,
    wait::{DEADLINE, until},
};

const RULES: &str = "\
domain: shop
descriptors:
  - key: month
    rate_limit: { requests_per_unit: 3, unit: month }
  - key: sliding
    rate_limit: { requests: 5, per: 1m, algorithm: sliding_window }
  - key: large
    rate_limit: { requests: 1000000, per: 1d }
";

fn rules() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("rules.yaml"), RULES).expect("a file in it");
    dir
}

fn start(rules: &TempDir, variables: &[(&str, &str)]) -> Serving {
    let own = [("BACKEND_TYPE", "memcache"), ("WEIR_STOP_DELAY", "0"), ("WEIR_DECISION_BUDGET", "5s")];
    Serving::start(rules.path().to_str().expect("a plain path"), &[&own, variables].concat())
}

async fn client(weir: &Serving) -> RateLimitServiceClient<Channel> {
    let address = format!("http://{}", weir.address("grpc"));
    RateLimitServiceClient::connect(address).await.expect("it listens")
}

/// Returns the response to a GET request for `path`.
fn page(weir: &Serving, path: &str) -> String {
    let mut stream = TcpStream::connect(weir.address("http")).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout that is not zero");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

fn await_health(weir: &Serving, status: &str) {
    let begun = Instant::now();
    while !page(weir, "/healthcheck").starts_with(&format!("HTTP/1.1 {status} ")) {
        assert!(begun.elapsed() < DEADLINE, "not {status} in time");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn stopped(weir: Serving) -> String {
    weir.signal("TERM");
    let (status, output) = weir.ended();
    assert!(status.success(), "{output}");
    output
}

// the client's tasks must run while the test waits for a weir to stop
#[tokio::test(flavor = "multi_thread")]
async fn two_weirs_share_their_counts_and_say_what_they_cannot_share() {
    let (rules, server) = (rules(), Server::start());
    let host = format!("127.0.0.1:{}", server.port());
    let needed = ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true");
    let weirs =
        [0; 2].map(|_| start(&rules, &[("MEMCACHE_HOST_PORT", &host), ("LOG_LEVEL", "info"), needed]));
    for weir in &weirs {
        // the log says so at the same time
        await_health(weir, "200");
    }
    let mut codes = Vec::new();
    for i in 0..5 {
        let month = request("shop", [descriptor([("month", "a b")])]);
        let response = client(&weirs[i % 2]).await.should_rate_limit(month).await.expect("a response");
        codes.push(response.into_inner().overall_code());
    }
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit]);
    // five hits count, of which three are given back
    let back = request("shop", [refund(3, descriptor([("month", "a b")]))]);
    client(&weirs[0]).await.should_rate_limit(back).await.expect("a response");
    until("the hits are given back", async || {
        let look = request("shop", [hits(0, descriptor([("month", "a b")]))]);
        let response = client(&weirs[1]).await.should_rate_limit(look).await.expect("a response");
        response.into_inner().statuses[0].limit_remaining == 1
    })
    .await;
    let again = request("shop", [hits(1, descriptor([("month", "a b")]))]);
    let response = client(&weirs[1]).await.should_rate_limit(again).await.expect("a response");
    assert_eq!(response.into_inner().overall_code(), Code::Ok);
    let metrics = page(&weirs[0], "/metrics");
    for metric in ["weir_memcached_servers 1", "weir_memcached_errors_total{kind=\"rejected\"} 0"] {
        assert!(metrics.contains(&format!("\n{metric}\n")), "{metric}");
    }
    let round_trips = "weir_memcached_round_trip_seconds_count";
    assert!(metrics.contains(round_trips) && !metrics.contains("weir_redis"), "{metrics}");
    for weir in weirs {
        let output = stopped(weir);
        let about: Vec<&str> = output.lines().filter(|line| line.contains("emcached")).collect();
        assert_eq!(about.len(), 2, "{output}");
        let warning = about.iter().find(|line| line.contains("WARN")).expect("a warning");
        assert!(
            warning.contains("rules.yaml:6:") && warning.contains("cannot share this limit"),
            "{warning}"
        );
        assert!(about.iter().any(|line| line.contains("memcached connected")), "{output}");
    }
}

#[test]
fn health_is_green_once_a_server_answers() {
    let (rules, mut servers) = (rules(), [Server::start(), Server::start()]);
    servers[0].kill();
    servers[1].kill();
    let hosts = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port())).join(",");
    let needed = ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true");
    let weir = start(&rules, &[("MEMCACHE_HOST_PORT", &hosts), needed]);
    await_health(&weir, "500");
    servers[1].restart();
    await_health(&weir, "200");
    let output = stopped(weir);
    let error = output.lines().find(|line| line.contains("cannot connect to memcached")).expect("an error");
    assert!(error.contains(&hosts[..hosts.find(',').expect("two hosts")]), "{error}");
    let weir = start(&rules, &[("MEMCACHE_HOST_PORT", &hosts)]);
    assert!(page(&weir, "/healthcheck").starts_with("HTTP/1.1 200 "), "by default it needs no server");
}

#[test]
fn check_and_explain_say_what_memcached_cannot_share() {
    let rules = rules();
    let dir = rules.path().to_str().expect("a plain path");
    let memcached = [("BACKEND_TYPE", "memcache")];
    let check = run(&["check", dir], &memcached);
    assert!(check.status.success());
    let text = stdout(&check);
    assert!(
        text.contains("rules.yaml:6:") && text.contains("each instance admits the whole limit"),
        "{text}"
    );
    assert!(text.contains("1 warning"), "{text}");
    assert!(!run(&["check", dir, "--deny-warnings"], &memcached).status.success());
    for other in [&[][..], &[("BACKEND_TYPE", "memcache"), ("WEIR_COORDINATION", "local")]] {
        assert!(stdout(&run(&["check", dir], other)).contains("0 warnings"), "{other:?}");
    }
    for (entry, expected) in [
        ("sliding=v", "with Memcached: local, since it counts only single fixed windows"),
        ("month=v", "with Memcached: strict (WEIR_COORDINATION: auto)"),
        ("large=v", "with Memcached: interval with up to 20000 instances, strict with more"),
    ] {
        let arguments = ["explain", "--config", dir, "--domain", "shop", entry];
        let text = stdout(&run(&arguments, &memcached));
        assert!(text.contains(expected) && !text.contains("with Redis"), "{text}");
        let text = stdout(&run(&arguments, &[]));
        assert!(text.contains("with Redis") && !text.contains("with Memcached"), "{text}");
    }
}

#[test]
fn wrong_settings_are_errors() {
    let rules = rules();
    let dir = rules.path().to_str().expect("a plain path");
    for (variables, expected) in [
        (&[][..], "MEMCACHE_HOST_PORT is not set, but must be the addresses of Memcached"),
        (&[("MEMCACHE_HOST_PORT", "one:two")], "MEMCACHE_HOST_PORT must be the addresses of Memcached"),
        (
            &[("MEMCACHE_HOST_PORT", "a"), ("MEMCACHE_SRV", "_a._tcp.b")],
            "unset, because MEMCACHE_HOST_PORT is set",
        ),
        (
            &[("MEMCACHE_HOST_PORT", "a"), ("MEMCACHE_TLS", "true"), ("MEMCACHE_TLS_CACERT", "/nowhere")],
            "cannot set up TLS to memcached",
        ),
    ] {
        let variables = [&[("BACKEND_TYPE", "memcache")], variables].concat();
        let output = run(&["serve", "--config", dir, "--grpc-port", "0", "--port", "0"], &variables);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}
