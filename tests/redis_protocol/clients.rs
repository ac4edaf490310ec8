//! Real clients: redis-cli and redis-benchmark, the redis crate, redis-py and Debian's node-redis.

use std::{
    fs::{self, DirEntry},
    path::{Path, PathBuf},
    process::Command,
};

use redis::AsyncTypedCommands as _;
use tokio::task::spawn_blocking;

use crate::client::{Client, port, start};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/redis-protocol");

/// Runs a command to its end on a thread of its own, and returns what it has printed.
async fn output(mut command: Command) -> String {
    let (what, output) =
        spawn_blocking(move || (format!("{command:?}"), command.output())).await.expect("no panic");
    let output = output.unwrap_or_else(|error| panic!("{what}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Returns a path in the folder whose name begins with `tool` among those that `make tools` installs.
fn installed(tool: &str, path: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    let is_it = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(tool);
    let entries = fs::read_dir(&tools).into_iter().flatten().flatten();
    let path = entries.filter(is_it).map(|entry| entry.path().join(path)).find(|path| path.exists());
    path.unwrap_or_else(|| panic!("there is no {tool} in {}: `make tools` installs it", tools.display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cli_speaks_both_versions() {
    let weir = start("domain: d", &[("WEIR_REDIS_AUTH", "me:secret")]).await;
    let port = port(&weir.addresses).to_string();
    let cli = async |arguments: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port, "--user", "me", "--pass", "secret", "--no-auth-warning"]).args(arguments);
        output(command).await
    };
    for reply in ["2\n", "1\n", "0\n"] {
        assert_eq!(cli(&["RL.REDUCE", "TwoPerMin", "2", "60"]).await, reply);
    }
    assert_eq!(cli(&["-3", "CL.THROTTLE", "k", "15", "30", "60"]).await, "0\n16\n15\n-1\n2\n");
    assert_eq!(cli(&["-n", "7", "TTL", "k"]).await, "2\n");
    assert_eq!(cli(&["-r", "3", "DEL", "k"]).await, "1\n0\n0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_benchmark_measures_with_and_without_pipelines() {
    let weir = start("domain: d", &[]).await;
    let port = port(&weir.addresses).to_string();
    for pipeline in ["1", "16"] {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-n", "2000", "-r", "100", "-P", pipeline, "-q", "--csv"]);
        command.args(["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"]);
        let printed = output(command).await;
        assert!(printed.contains("\"CL.THROTTLE key:__rand_int__ 15 30 60\","), "{printed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_redis_crate_speaks_both_versions_and_pipelines() {
    let weir = start("domain: d", &[("WEIR_REDIS_AUTH", "me:secret")]).await;
    for protocol in ["", "/?protocol=resp3"] {
        let address = format!("redis://me:secret@127.0.0.1:{}{protocol}", port(&weir.addresses));
        let client = redis::Client::open(address).expect("an address");
        let mut connection = client.get_multiplexed_async_connection().await.expect("it is accepted");
        let throttle = redis::cmd("CL.THROTTLE").arg(b"k\xff").arg(15).arg(30).arg(60).to_owned();
        let reply: Vec<i64> = throttle.query_async(&mut connection).await.expect("five numbers");
        assert_eq!(reply, [0, 16, 15, -1, 2]);
        let mut pipeline = redis::pipe();
        pipeline.atomic().add_command(throttle.clone()).add_command(throttle);
        let replies: Vec<Vec<i64>> = pipeline.query_async(&mut connection).await.expect("two replies");
        assert_eq!(replies, [[0, 16, 14, -1, 4], [0, 16, 13, -1, 6]]);
        assert_eq!(connection.ttl(b"k\xff").await.expect("a time").raw(), 6);
        assert_eq!(connection.del(b"k\xff").await.expect("a number"), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_speaks_both_versions_with_its_default_pipelines() {
    let python = installed("redis-py-", "bin/python3");
    let weir = start(
        "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: { unit: day, requests_per_unit: 2 }",
        &[],
    )
    .await;
    for protocol in ["2", "3"] {
        let mut command = Command::new(&python);
        command.arg(format!("{EXAMPLES}/limits.py")).env("WEIR_PORT", port(&weir.addresses).to_string());
        command.env("WEIR_PROTOCOL", protocol);
        let printed = output(command).await;
        for line in [
            "RL.REDUCE: 2, 1, 0",
            "CL.THROTTLE: allowed, 15 left",
            "pipeline: 1, 2, 3 tokens taken",
            "reset: 1",
        ] {
            assert!(printed.contains(line), "{line} in {printed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_redis_speaks_with_transactions_and_pipelines() {
    let modules = installed("node-redis", "usr/share/nodejs");
    let weir = start(
        "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: { unit: day, requests_per_unit: 2 }",
        &[],
    )
    .await;
    let mut command = Command::new("node");
    command.arg(format!("{EXAMPLES}/limits.js")).env("WEIR_PORT", port(&weir.addresses).to_string());
    command.env("NODE_PATH", modules);
    let printed = output(command).await;
    for line in
        ["RL.REDUCE: 2, 1, 0", "CL.THROTTLE: allowed, 15 left", "pipeline: 1, 2, 3 tokens taken", "reset: 1"]
    {
        assert!(printed.contains(line), "{line} in {printed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_for_redis_cli_runs() {
    let rules =
        "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: { unit: day, requests_per_unit: 2 }";
    let weir = start(rules, &[]).await;
    let mut command = Command::new("sh");
    command.arg(format!("{EXAMPLES}/limits.sh")).env("WEIR_PORT", port(&weir.addresses).to_string());
    let printed = output(command).await;
    assert!(printed.contains("RL.REDUCE\n2\n1\n0\n") && printed.contains("OVER_LIMIT"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cli_speaks_tls_and_a_client_without_it_is_closed() {
    let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/weir-testing/keys");
    let (certificate, key) = (format!("{keys}/rsa.crt"), format!("{keys}/rsa.pem"));
    let files = [("GRPC_SERVER_TLS_CERT", &*certificate), ("GRPC_SERVER_TLS_KEY", &*key)];
    // gRPC itself stays without TLS
    let weir = start("domain: d", &[&files[..], &[("WEIR_REDIS_TLS", "true")]].concat()).await;
    let mut command = Command::new("redis-cli");
    command.args([
        "-p",
        &port(&weir.addresses).to_string(),
        "--tls",
        "--insecure",
        "RL.REDUCE",
        "k",
        "2",
        "60",
    ]);
    assert_eq!(output(command).await, "2\n");
    let mut plain = Client::to(&weir).await;
    plain.send(b"*1\r\n$4\r\nPING\r\n").await;
    assert!(!plain.rest().await.contains("PONG"));
}
