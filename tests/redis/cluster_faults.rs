//! Clusters that lose a node: keys on that node are decided without it, and all other keys as before.

use std::{
    fs,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::time::sleep;

use crate::support::{Cluster, Server, Weir, until};

/// The coordination modes that wait for Redis, each with its `on_store_failure`.
const MODES: [(&str, &str); 3] = [("interval", "local"), ("lease", "deny"), ("strict", "deny")];

/// A cluster, and weirs that use it.
struct WeirsOnCluster {
    cluster: Cluster,
    weirs: Vec<Weir>,
    _dir: TempDir,
}

/// How a node is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Killed,
    Frozen,
}

// === impl Loss ===

impl Loss {
    fn begin(self, node: &mut Server) {
        match self {
            Self::Killed => node.kill(),
            Self::Frozen => node.signal("STOP"),
        }
    }

    fn end(self, node: &mut Server) {
        match self {
            Self::Killed => node.restart(),
            Self::Frozen => node.signal("CONT"),
        }
    }
}

// === impl WeirsOnCluster ===

impl WeirsOnCluster {
    /// Starts two weirs, with a rule of `requests` for each coordination mode.
    async fn start(requests: u32) -> Self {
        let cluster = Cluster::start().await;
        let rule = |(mode, failure): (&str, &str)| {
            format!(
                "  - key: {mode}\n    rate_limit: {{ requests: {requests}, per: 365d, coordination: {mode}, \
                 on_store_failure: {failure} }}\n"
            )
        };
        let rules = format!("domain: shop\ndescriptors:\n{}", MODES.map(rule).concat());
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("rules.yaml"), rules).expect("a file in it");
        let path = dir.path().to_str().expect("a path in UTF-8");
        let nodes: Vec<String> =
            cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        // a timeout longer than any test, so that it has no effect
        let variables =
            [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", &*nodes.join(",")), ("REDIS_TIMEOUT", "60s")];
        let mut weirs = Vec::new();
        for _ in 0..2 {
            weirs.push(Weir::start_with(&cluster.nodes[0], path, &variables).await);
        }
        let setup = Self { cluster, weirs, _dir: dir };
        until("all instances know each other", async || {
            setup.weirs.iter().all(|weir| weir.metric("weir_instances") == 2)
        })
        .await;
        setup
    }

    /// Returns a key of `mode` that the node with this index holds.
    fn key(&self, mode: &str, node: usize) -> String {
        let on = |value: &char| self.cluster.holder(&format!("{{shop|{mode}={value}}}")).1 == node;
        let value = ('a'..='z').find(on).expect("each node holds a third of the slots");
        format!("{mode}={value}")
    }

    /// Returns the hits of `key` that the node with this index counts.
    fn counted(&self, key: &str, node: usize) -> u64 {
        let node = &self.cluster.nodes[node];
        let keys: Vec<String> = node.send(&["KEYS", &format!("*{{shop|{key}}}*")]);
        keys.iter().map(|key| node.send::<u64>(&["GET", key])).sum()
    }
}

/// Keys of a lost node are decided by `on_store_failure` within the budget, and Redis decides the keys of the other
/// nodes as before. The node is used again when it is back.
async fn a_loss_affects_no_other_node(loss: Loss, holds_instances: bool) {
    let mut setup = WeirsOnCluster::start(1_000_000).await;
    let registry = setup.cluster.holder("weir:instances").1;
    // the node that keeps the registered instances, or another one
    let failed = if holds_instances { registry } else { (registry + 1) % 3 };
    let others = [(failed + 1) % 3, (failed + 2) % 3];
    let on_lost = MODES.map(|(mode, _)| setup.key(mode, failed));
    let on_others = others.map(|node| MODES.map(|(mode, _)| setup.key(mode, node)));
    let [weir, second] = &setup.weirs[..] else { unreachable!("there are two") };
    for key in on_lost.iter().chain(on_others.iter().flatten()) {
        until("redis decides", async || weir.send(key).await && second.send(key).await).await;
    }

    loss.begin(&mut setup.cluster.nodes[failed]);
    let [weir, second] = &setup.weirs[..] else { unreachable!("there are two") };
    until("both weirs notice the failure", async || {
        !weir.send(&on_lost[2]).await && !second.send(&on_lost[2]).await
    })
    .await;
    let (mut counted_locally, mut sent, mut rejected) = (0, 0, 0);
    let begun = Instant::now();
    // several heartbeats fail meanwhile
    while begun.elapsed() < Duration::from_secs(5) {
        for weir in [weir, second] {
            assert!(weir.send(&on_lost[0]).await, "`on_store_failure: local` admits it");
            counted_locally += 1;
            assert!(!weir.send(&on_lost[2]).await, "`on_store_failure: deny` rejects it");
            weir.send(&on_lost[1]).await;
            for key in on_others.iter().flatten() {
                sent += 1;
                rejected += u64::from(!weir.send(key).await);
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
    // except for replies that are late on a busy machine
    assert!(rejected * 20 <= sent, "{loss:?}: {rejected} of {sent} were not decided by redis");
    for (node, keys) in others.into_iter().zip(&on_others) {
        let before = setup.counted(&keys[0], node);
        assert!(weir.send(&keys[0]).await && second.send(&keys[0]).await);
        until("the other nodes count", async || setup.counted(&keys[0], node) >= before + 2).await;
    }

    loss.end(&mut setup.cluster.nodes[failed]);
    let [weir, second] = &setup.weirs[..] else { unreachable!("there are two") };
    for key in &on_lost {
        until("redis decides again", async || {
            weir.send(key).await
                && second.send(key).await
                && weir.metric("weir_store_unavailable") + second.metric("weir_store_unavailable") == 0
        })
        .await;
    }
    // except for syncs that were in flight when the node was lost or came back
    until("the node counts again", async || 2 * setup.counted(&on_lost[0], failed) >= counted_locally).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_a_node_affects_no_other() {
    a_loss_affects_no_other_node(Loss::Killed, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_node_of_the_registered_instances_affects_no_other() {
    a_loss_affects_no_other_node(Loss::Killed, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn freezing_a_node_affects_no_other() {
    a_loss_affects_no_other_node(Loss::Frozen, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn freezing_the_node_of_the_registered_instances_affects_no_other() {
    a_loss_affects_no_other_node(Loss::Frozen, true).await;
}

/// A replica takes over with the replicated counts, and the limit holds.
async fn a_replica_continues_counting(loss: Loss) {
    let mut setup = WeirsOnCluster::start(60).await;
    let replica = setup.cluster.add_replica(0).await;
    let keys = MODES.map(|(mode, _)| setup.key(mode, 0));
    let mut admitted = [0_u64; 3];
    for (key, admitted) in keys.iter().zip(&mut admitted) {
        for weir in &setup.weirs {
            for _ in 0..5 {
                *admitted += u64::from(weir.send(key).await);
            }
        }
        until("the hits are counted", async || setup.counted(key, 0) >= *admitted).await;
    }
    let written = setup.cluster.nodes[0].offset("master_repl_offset:");
    until("the hits are replicated", async || replica.offset("slave_repl_offset:") >= written).await;
    loss.begin(&mut setup.cluster.nodes[0]);
    let _lost_node = std::mem::replace(&mut setup.cluster.nodes[0], replica);
    until("the replica takes over", async || {
        for (i, key) in keys.iter().enumerate() {
            admitted[i] += u64::from(setup.weirs[0].send(key).await);
        }
        let info: String = setup.cluster.nodes[0].send(&["INFO", "replication"]);
        info.contains("role:master")
    })
    .await;
    for (i, key) in keys.iter().enumerate() {
        until("the whole limit is used", async || {
            for weir in &setup.weirs {
                admitted[i] += u64::from(weir.send(key).await);
            }
            setup.counted(key, 0) >= 60
        })
        .await;
        for weir in &setup.weirs {
            admitted[i] += u64::from(weir.send(key).await);
        }
    }
    let [interval, lease, strict] = admitted;
    // each weir decides by its own count until the replica replies
    assert!((60..=120).contains(&interval), "{interval}");
    assert!(lease <= 60 && strict <= 60, "{lease} and {strict}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_killed_node_continues_counting() {
    a_replica_continues_counting(Loss::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_frozen_node_continues_counting() {
    a_replica_continues_counting(Loss::Frozen).await;
}
