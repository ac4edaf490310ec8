//! A Redis that is broken or hostile: what it replies takes a bounded number of connections.

use std::time::Duration;

use weir_limit::Timestamp;
use weir_remotes::redis::{RedisRemote, Topology};
use weir_store::remote::Remote as _;

use crate::support::{FakeRedis, Op, address, compatible, connected, settings, until};

const AT: Timestamp = Timestamp::from_secs(3_600);

/// Returns the reply to `CLUSTER SLOTS` of a cluster with `masters` masters.
fn slots(masters: usize) -> String {
    let ranges = (0..masters).map(|i| {
        let last = if i + 1 == masters { 16_383 } else { i };
        format!("*3\r\n:{i}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{}\r\n", 20_000 + i)
    });
    format!("*{masters}\r\n{}", ranges.collect::<String>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_too_many_masters_is_not_connected_to() {
    for (masters, connected) in [(1_001, 0), (16_384, 0), (1_000, 1_000)] {
        let server = FakeRedis::start().await;
        server.reply(move |command| (command[0] == "CLUSTER").then(|| slots(masters)));
        let mut settings = settings(address(server.port()));
        settings.main.topology = Topology::Cluster(vec![address(server.port())]);
        let remote = RedisRemote::new(settings).expect("it needs no files");
        let is_refused = |error: String| error.contains("more than 1000 masters");
        if connected > 0 {
            until("all are known", async || remote.state().servers.len() == connected).await;
        } else {
            until("the slots are refused", async || remote.state().error.is_some_and(is_refused)).await;
        }
        let state = remote.state();
        assert_eq!((state.servers.len(), state.error.is_some_and(is_refused)), (connected, connected == 0));
    }
}

/// Each redirect names another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_to_ever_new_servers_open_a_bounded_number_of_connections() {
    let server = FakeRedis::start().await;
    let port = server.port();
    let all = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
    let next = std::sync::atomic::AtomicUsize::new(0);
    server.reply(move |command| match command[0].as_str() {
        "CLUSTER" => Some(all.clone()),
        "INCRBY" => {
            let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Some(format!("-ASK {} 127.1.{}.{}:1\r\n", i % 16_384, i / 250 % 250, 1 + i % 250))
        }
        _ => None,
    });
    let mut settings = settings(address(server.port()));
    settings.main.topology = Topology::Cluster(vec![address(server.port())]);
    settings.main.timeout = Duration::from_secs(20);
    let remote = connected(settings).await;
    let targets = (0..4_000).map(|i| compatible(&format!("k{i}_"), 100, 3_600));
    let commands = targets.map(|target| Op::Take { hits: 1 }.command(&target, AT)).collect();
    let mut calls = tokio::task::JoinSet::new();
    let remote = std::sync::Arc::new(remote);
    let called = std::sync::Arc::clone(&remote);
    calls.spawn(async move { called.call(commands).await.is_ok() });
    let mut most = 0;
    while tokio::time::timeout(Duration::from_millis(1), calls.join_next()).await.is_err() {
        most = most.max(remote.state().servers.len());
    }
    assert!((100..=1_100).contains(&most), "{most}");
}
