//! A cluster of three masters.

use crate::{redis_server::Server, wait::until};

/// Arguments of a cluster node. The others consider a node lost after a second, and continue without it. It sends its
/// data to a new replica at once.
const NODE: [&str; 8] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    "--cluster-require-full-coverage",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];

/// Three masters, each with a third of the slots.
pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    pub async fn start() -> Self {
        let nodes: Vec<Server> = (0..3).map(|_| Server::start_with(&NODE)).collect();
        for (i, (first, last)) in [(0, 5_460), (5_461, 10_922), (10_923, 16_383)].into_iter().enumerate() {
            nodes[i].send::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            nodes[i].send::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
        }
        for node in &nodes[1..] {
            nodes[0].send::<()>(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]);
        }
        let cluster = Self { nodes };
        cluster.settle().await;
        cluster
    }

    /// Waits until all nodes agree on the state of the cluster.
    pub async fn settle(&self) {
        until("the cluster is up", async || {
            self.nodes.iter().all(|node| {
                let info: String = node.send(&["CLUSTER", "INFO"]);
                // a node may report `ok` before it knows the masters of all slots
                let expected = ["cluster_state:ok", "cluster_known_nodes:3", "cluster_slots_assigned:16384"];
                expected.iter().all(|line| info.contains(line))
            })
        })
        .await;
    }

    /// Returns the slot of `key`, and the index of the node that holds it.
    pub fn holder(&self, key: &str) -> (u16, usize) {
        let slot: u16 = self.nodes[0].send(&["CLUSTER", "KEYSLOT", key]);
        (slot, usize::from(slot > 5_460) + usize::from(slot > 10_922))
    }

    /// Adds a replica of the master with the index `of`. It takes over when that master dies.
    pub async fn add_replica(&self, of: usize) -> Server {
        let prompt = ["--cluster-replica-validity-factor", "0"];
        let replica = Server::start_with(&[&NODE[..], &prompt].concat());
        replica.send::<()>(&["CLUSTER", "MEET", "127.0.0.1", &self.nodes[of].port().to_string()]);
        let of = self.id(of);
        until("the new node knows all masters", async || {
            let nodes: String = replica.send(&["CLUSTER", "NODES"]);
            nodes.lines().filter(|node| node.contains("master") && node.contains("connected")).count() == 4
        })
        .await;
        replica.send::<()>(&["CLUSTER", "REPLICATE", &of]);
        until("the replica is in sync, and every node knows it", async || {
            let info: String = replica.send(&["INFO", "replication"]);
            let known = |node: &Server| {
                let nodes: String = node.send(&["CLUSTER", "NODES"]);
                nodes.lines().any(|node| node.contains("slave") && node.contains(&of))
            };
            info.contains("master_link_status:up") && self.nodes.iter().all(known)
        })
        .await;
        replica
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].send(&["CLUSTER", "MYID"])
    }

    /// Starts to move `slot` from one node to another.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.nodes[to].send::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        self.nodes[from].send::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Moves the existing keys of `slot`.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let keys: Vec<String> =
            self.nodes[from].send(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]);
        for key in keys {
            let port = self.nodes[to].port().to_string();
            self.nodes[from].send::<()>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "1000"]);
        }
    }

    /// Finishes the move of `slot`.
    pub fn end_move(&self, slot: u16, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to));
        // the new holder first, so that a node holds the slot at all times
        let order = [to].into_iter().chain((0..3).filter(|node| *node != to));
        for node in order {
            self.nodes[node].send::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }
}
