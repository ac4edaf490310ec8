//! A Redis that is broken or hostile: what it replies takes a bounded amount of memory and log.

use std::fs;

use crate::{
    child::{Serving, run, stderr},
    support::{FakeRedis, until},
};

/// The most memory of a weir with a hostile Redis, in MiB.
const MOST: u64 = 250;

/// Starts weir with the Redis `server`.
fn serve(server: &FakeRedis) -> (tempfile::TempDir, Serving) {
    let rules = tempfile::tempdir().expect("a directory");
    let text = "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: { requests: 9, per: 365d }\n";
    fs::write(rules.path().join("rules.yaml"), text).expect("a file in it");
    let url = format!("127.0.0.1:{}", server.port());
    let variables = [("REDIS_URL", &*url), ("WEIR_STOP_DELAY", "0"), ("REDIS_STARTUP_MAX_INTERVAL", "50ms")];
    let weir = Serving::start(rules.path().to_str().expect("a plain path"), &variables);
    (rules, weir)
}

/// Returns the most memory that `weir` has had, in MiB.
fn peak(weir: &Serving) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", weir.pid())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1_024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_many_tiny_parts_take_little_memory() {
    for part in ["*0\r\n", "*1\r\n:1\r\n", "%1\r\n:1\r\n:1\r\n", "$0\r\n\r\n"] {
        let server = FakeRedis::start().await;
        let count = (16 << 20) / (part.len() + 1);
        let reply = format!("*{count}\r\n{}", part.repeat(count));
        // the heartbeat
        server.reply(move |command| command[0].starts_with("EVAL").then(|| reply.clone()));
        let (_rules, weir) = serve(&server);
        until("it has connected again", async || server.received("HELLO") >= 4).await;
        assert!(peak(&weir) < MOST, "{} MiB for {part:?}", peak(&weir));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_text_of_redis_is_cut_in_the_log() {
    let server = FakeRedis::start().await;
    let text = format!("!8000004\r\nERR {}\r\n", "x".repeat(8_000_000));
    server.reply(move |command| (command[0] == "HELLO").then(|| text.clone()));
    let url = format!("127.0.0.1:{}", server.port());
    let output = run(
        &["--config", "config", "--grpc-port", "0", "--port", "0", "--debug-port", "0"],
        &[("REDIS_URL", &url), ("REDIS_STARTUP_MAX_ELAPSED_TIME", "4s")],
    );
    let log = stderr(&output);
    let longest = log.lines().map(str::len).max().unwrap_or_default();
    assert!(log.contains("ERR xxxx") && longest < 1_500, "{longest}: {log:.2000}");
}
