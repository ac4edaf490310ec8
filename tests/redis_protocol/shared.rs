//! Buckets and rules over a real Redis that several weirs share.

use std::{net::TcpListener, process::Command};

use crate::{
    child::Serving,
    client::Client,
    in_process::{DEADLINE, get, until},
    server_process::ServerProcess,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { requests: 10, per: 1d, coordination: strict }
";

/// A Redis of its own, and its address.
fn redis_server() -> (ServerProcess, String, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    // free when it starts; another process that takes it meanwhile makes the test fail, not pass
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    drop(listener);
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir.path());
    (ServerProcess::start(command), format!("redis://127.0.0.1:{port}"), dir)
}

/// Weirs that know each other, each with a client, and the Redis that they share.
struct Weirs {
    all: Vec<(Serving, Client)>,
    redis: ServerProcess,
    _dirs: [tempfile::TempDir; 2],
}

impl Weirs {
    async fn start(count: usize, variables: &[(&str, &str)]) -> Self {
        let (redis, address, dir) = redis_server();
        let rules = tempfile::tempdir().expect("a directory");
        std::fs::write(rules.path().join("rules.yaml"), RULES).expect("a file in it");
        let own = [
            ("REDIS_URL", &*address),
            ("REDIS_STARTUP_MAX_ELAPSED_TIME", "20s"),
            ("WEIR_DECISION_BUDGET", "20s"),
            ("WEIR_STOP_DELAY", "0"),
            ("WEIR_REDIS_PORT", "0"),
            ("WEIR_REDIS_HOST", "127.0.0.1"),
        ];
        let mut all = Vec::new();
        for _ in 0..count {
            let dir = rules.path().to_str().expect("a plain path");
            let serving = Serving::start(dir, &[&own[..], variables].concat());
            let port = serving.address("redis").rsplit(':').next().and_then(|port| port.parse().ok());
            all.push((serving, Client::connect(port.expect("a port")).await));
        }
        let know_each_other = async {
            for (serving, _) in &all {
                let address = serving.address("http").parse().expect("an address");
                while !get(address, "/metrics").await.contains(&format!("weir_instances {count}\n")) {
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::time::timeout(DEADLINE, know_each_other).await.expect("they know each other");
        Self { all, redis, _dirs: [dir, rules] }
    }
}

/// The sum of what weirs admit never exceeds the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_weirs_admits_what_one_redis_cell_would() {
    for mode in ["strict", "lease", "auto"] {
        let mut weirs = Weirs::start(3, &[("WEIR_COORDINATION", mode)]).await;
        let mut admitted = 0;
        for _ in 0..20 {
            for (_, client) in &mut weirs.all {
                let reply = client.ask("CL.THROTTLE k 29 1 86400").await;
                admitted += usize::from(reply.starts_with("[:0 :30 "));
            }
        }
        // leases may hold some back for a moment, and never admit more
        assert!(admitted <= 30 && (mode != "strict" || admitted == 30), "{mode}: {admitted}");
        assert!(admitted >= 20, "{mode}: {admitted}");
        let (_, client) = &mut weirs.all[0];
        // a changed plan is the same bucket on all instances
        let reply = client.ask("CL.THROTTLE k 29 1 43200 0").await;
        if mode == "strict" {
            assert_eq!(reply.split(' ').nth(2), Some(":0"), "{mode}: {reply}");
        }
    }
}

/// Also by one that has never used it.
#[tokio::test(flavor = "multi_thread")]
async fn any_weir_deletes_a_bucket_for_all() {
    for mode in ["auto", "interval", "lease", "strict"] {
        let mut weirs = Weirs::start(2, &[("WEIR_COORDINATION", mode)]).await;
        let [(_, one), (_, other)] = &mut weirs.all[..] else { panic!("two weirs") };
        assert_eq!(one.ask("CL.THROTTLE k 9 1 86400 10").await, "[:0 :10 :0 :-1 :864000]", "{mode}");
        until("it is deleted", async || other.ask("DEL k").await == ":1").await;
        until("all tokens", async || one.ask("CL.THROTTLE k 9 1 86400 0").await.starts_with("[:0 :10 :10 "))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_given_back_and_buckets_deleted_for_all() {
    let mut weirs = Weirs::start(2, &[("WEIR_COORDINATION", "strict")]).await;
    let [(_, one), (_, other)] = &mut weirs.all[..] else { panic!("two weirs") };
    assert_eq!(one.ask("CL.THROTTLE k 9 1 86400 10").await, "[:0 :10 :0 :-1 :864000]");
    assert!(other.ask("CL.THROTTLE k 9 1 86400").await.starts_with("[:1 :10 :0 :86400 "));
    other.ask("CL.THROTTLE k 9 1 86400 -4").await;
    // a reply to what gives back does not wait for Redis
    until("four tokens", async || one.ask("CL.THROTTLE k 9 1 86400 0").await.starts_with("[:0 :10 :4 "))
        .await;
    assert!(one.ask("CL.THROTTLE k 9 1 86400 4").await.starts_with("[:0 :10 :0 "));
    assert_eq!(other.ask("DEL k").await, ":1");
    until("all tokens", async || one.ask("CL.THROTTLE k 9 1 86400 0").await.starts_with("[:0 :10 :10 "))
        .await;
    assert!(one.ask("CL.THROTTLE k 9 1 86400 10").await.starts_with("[:0 :10 :0 "));
    assert_eq!(one.ask("DEL none").await, ":0");
    // keys of any bytes
    for expected in ["[:0 :1 :0 ", "[:1 :1 :0 "] {
        let reply = one.ask_of(&[&b"CL.THROTTLE"[..], b"\xff}%\0", b"0", b"1", b"3600"]).await;
        assert!(reply.starts_with(expected), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_shared_store_cannot_do_is_said() {
    let mut weirs = Weirs::start(1, &[]).await;
    let (_, client) = &mut weirs.all[0];
    for (command, reply) in [
        (
            "RL.REDUCE k 2 60",
            "-ERR RL.* are served in memory and on disk, not over a store that instances share",
        ),
        ("EXISTS k", "-ERR a shared store does not know when a bucket is full"),
        ("TTL k", "-ERR a shared store does not know when a bucket is full"),
        ("CL.THROTTLE k 4294967295 1 60", "-ERR a shared store counts up to 4294967295 tokens"),
        ("CL.THROTTLE k 1 1 31536001", "-ERR a shared store counts up to 4294967295 tokens"),
    ] {
        let replied = client.ask(command).await;
        assert!(replied.starts_with(reply), "{command}: {replied}");
    }
    assert!(
        client.ask("CL.THROTTLE k 4294967294 1 31536000").await.starts_with("[:0 :4294967295 :4294967294 ")
    );
    assert!(client.ask("CL.THROTTLE k -1 1 60").await.starts_with("[:1 :0 :0 :-1 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_counts_alone_has_all_commands() {
    let mut weirs = Weirs::start(1, &[("WEIR_COORDINATION", "local")]).await;
    let (_, client) = &mut weirs.all[0];
    assert_eq!(client.ask("RL.REDUCE k 2 60").await, ":2");
    assert_eq!(client.ask("CL.THROTTLE k 15 30 60").await, "[:0 :16 :15 :-1 :2]");
    let full_after = client.ask("TTL k").await;
    assert!(["60", "61"].contains(&full_after.trim_start_matches(':')), "{full_after}");
    assert_eq!(client.ask("DEL k").await, ":1");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_taken_from_the_shared_counters() {
    let mut weirs = Weirs::start(2, &[("WEIR_REDIS_RESET", "true")]).await;
    let [(_, one), (_, other)] = &mut weirs.all[..] else { panic!("two weirs") };
    assert!(one.ask("WEIR.TAKE shop tenant a HITS 6").await.contains("\"OK\""));
    assert!(other.ask("WEIR.TAKE shop tenant a HITS 6").await.contains("\"OVER_LIMIT\""));
    assert_eq!(other.ask("WEIR.RESET shop tenant a").await, ":1");
    // the reply does not wait for Redis
    let given_back = "\"limit_remaining\" :10 ";
    until("all hits", async || one.ask("WEIR.PEEK shop tenant a").await.contains(given_back)).await;
    assert!(one.ask("WEIR.TAKE shop tenant a HITS 10").await.contains("\"OK\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_leaves_buckets_to_the_instance() {
    let mut weirs = Weirs::start(1, &[("WEIR_DECISION_BUDGET", "100ms")]).await;
    weirs.redis.kill();
    let (_, client) = &mut weirs.all[0];
    // decided by this instance alone
    assert!(client.ask("CL.THROTTLE k 15 30 60").await.starts_with("[:0 :16 "));
}
