//! A circuit breaker for each node of the shared store.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    limit::Timestamp,
    store::remote::{StoreNode, Target},
};

/// The failures in a row that open it.
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

/// A target that a node failed to count, and when: each window of a target may belong to another node.
#[derive(Clone, Debug)]
pub(super) struct FailedCount {
    pub(super) target: Arc<Target>,
    pub(super) at: Timestamp,
}

#[derive(Debug, Default)]
struct NodeHealth {
    /// In a row.
    failures: u32,
    replies: u64,
    /// What a probe can use. None if only heartbeats have failed.
    failed: Option<FailedCount>,
}

// === impl Breaker ===

impl Breaker {
    pub(super) fn record_reply(&self, node: StoreNode) {
        let mut nodes = self.nodes.lock();
        let health = nodes.entry(node).or_default();
        if health.is_open() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        *health = NodeHealth { replies: health.replies + 1, ..NodeHealth::default() };
    }

    pub(super) fn replies(&self, node: StoreNode) -> u64 {
        self.nodes.lock().get(&node).map_or(0, |health| health.replies)
    }

    /// `failures` in a row; [`OPENS`] for a node that has sent no reply at all for longer than a caller should wait.
    pub(super) fn record_failures(&self, node: StoreNode, failed: Option<FailedCount>, failures: u32) {
        let mut nodes = self.nodes.lock();
        let health = nodes.entry(node).or_default();
        let was_open = health.is_open();
        health.failures = health.failures.saturating_add(failures);
        health.failed = failed.or(health.failed.take());
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

    /// Each with what to probe it with.
    pub(super) fn open_nodes(&self) -> Vec<(StoreNode, Option<FailedCount>)> {
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

    #[test]
    fn replies_are_counted_across_failures() {
        let breaker = Breaker::default();
        assert_eq!(breaker.replies(StoreNode(1)), 0);
        for replies in 1..4 {
            breaker.record_failures(StoreNode(1), None, OPENS);
            breaker.record_reply(StoreNode(1));
            assert_eq!((breaker.replies(StoreNode(1)), breaker.replies(StoreNode(2))), (replies, 0));
        }
    }
}
