//! A circuit breaker for each node of the shared store.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::time::Instant;

use weir_limit::Timestamp;
use weir_store::remote::{StoreNode, Target};

pub(super) const OPENS: u32 = 3;

/// Opens for a node that fails several times in a row or is silent for too long. Then no decision waits for that node.
/// Heartbeats and probes keep trying it, and a reply closes the breaker.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// The number of nodes that it is open for. Every decision reads it; it is written only when it changes.
    open: AtomicUsize,
    /// Locked by calls only, which is cheap next to a round trip.
    nodes: Mutex<BTreeMap<StoreNode, NodeHealth>>,
}

/// What a node failed to count, and when.
pub(super) type FailedTarget = (Arc<Target>, Timestamp);

#[derive(Debug, Default)]
struct NodeHealth {
    /// In a row.
    failures: u32,
    replied_at: Option<Instant>,
    /// None if only heartbeats have failed.
    failed: Option<FailedTarget>,
}

// === impl Breaker ===

impl Breaker {
    pub(super) fn record_reply(&self, node: StoreNode) {
        let replied = NodeHealth { replied_at: Some(Instant::now()), ..NodeHealth::default() };
        let before = self.nodes.lock().insert(node, replied);
        if before.is_some_and(|health| health.is_open()) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn replied_at(&self, node: StoreNode) -> Option<Instant> {
        self.nodes.lock().get(&node)?.replied_at
    }

    /// `failures` in a row; [`OPENS`] for a node that has sent no reply at all for longer than a caller should wait.
    pub(super) fn record_failures(&self, node: StoreNode, failed: Option<&FailedTarget>, failures: u32) {
        let mut nodes = self.nodes.lock();
        let health = nodes.entry(node).or_default();
        let was_open = health.is_open();
        health.failures = health.failures.saturating_add(failures);
        health.failed = failed.cloned().or(health.failed.take());
        if health.is_open() && !was_open {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_open_for(&self, node: StoreNode) -> bool {
        self.nodes.lock().get(&node).is_some_and(NodeHealth::is_open)
    }

    pub(super) fn open_nodes(&self) -> Vec<(StoreNode, Option<FailedTarget>)> {
        let nodes = self.nodes.lock();
        let open = nodes.iter().filter(|(_, health)| health.is_open());
        open.map(|(node, health)| (*node, health.failed.clone())).collect()
    }
}

impl NodeHealth {
    const fn is_open(&self) -> bool {
        self.failures >= OPENS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_own_state() {
        let breaker = Breaker::default();
        for _ in 0..3 {
            assert!(!breaker.is_open());
            breaker.record_reply(StoreNode(1));
            breaker.record_failures(StoreNode(2), None, 1);
        }
        assert!(breaker.is_open() && breaker.is_open_for(StoreNode(2)) && !breaker.is_open_for(StoreNode(1)));
        breaker.record_failures(StoreNode(1), None, OPENS);
        breaker.record_failures(StoreNode(1), None, OPENS);
        assert!(breaker.is_open_for(StoreNode(1)));
        assert_eq!(breaker.open_nodes().len(), 2);
        breaker.record_reply(StoreNode(2));
        assert!(breaker.is_open() && !breaker.is_open_for(StoreNode(2)));
        breaker.record_reply(StoreNode(1));
        assert!(!breaker.is_open());
    }
}
