//! Whether the shared store is worth asking.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use crate::store::remote::{StoreNode, Target};

/// Failures in a row after which nobody waits for the store any more.
const PATIENCE: u32 = 3;

/// Opens for a node of the store when that has failed several times in a row or is silent for too long, and closes when it
/// answers. While it is open decisions are made at once without that node; the heartbeat goes on trying.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Places that it is open for: none while all is well. Read by every decision, and written only when it changes.
    open: AtomicUsize,
    /// Few, and locked by calls only: next to a round trip that costs nothing.
    nodes: Mutex<BTreeMap<StoreNode, Record>>,
}

/// How one node has done lately.
#[derive(Debug, Default)]
struct Record {
    /// In a row.
    failures: u32,
    /// How often it answered.
    answers: u64,
    /// What it did not count: to ask for that again tells whether it is back. None where only heartbeats failed.
    target: Option<Arc<Target>>,
}

// === impl Breaker ===

impl Breaker {
    /// `node` has answered.
    pub(super) fn answered(&self, node: StoreNode) {
        let mut nodes = self.nodes.lock();
        let record = nodes.entry(node).or_default();
        if record.is_open() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        *record = Record { answers: record.answers + 1, ..Record::default() };
    }

    /// How often `node` has answered.
    pub(super) fn answers(&self, node: StoreNode) -> u64 {
        self.nodes.lock().get(&node).map_or(0, |record| record.answers)
    }

    /// `node` has not counted `target`, or not taken a heartbeat; or not in time.
    pub(super) fn failed(&self, node: StoreNode, target: Option<&Arc<Target>>) {
        self.fail(node, target, 1);
    }

    /// `node` was asked and has said nothing at all for longer than anybody should wait.
    pub(super) fn silent(&self, node: StoreNode, target: Option<&Arc<Target>>) {
        self.fail(node, target, PATIENCE);
    }

    fn fail(&self, node: StoreNode, target: Option<&Arc<Target>>, failures: u32) {
        let mut nodes = self.nodes.lock();
        let record = nodes.entry(node).or_default();
        let was_open = record.is_open();
        record.failures = record.failures.saturating_add(failures).min(PATIENCE);
        record.target = target.map(Arc::clone).or(record.target.take());
        if record.is_open() && !was_open {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether there are nodes that are not to be asked.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Whether `node` is not to be asked.
    pub(super) fn is_open_for(&self, node: StoreNode) -> bool {
        self.nodes.lock().get(&node).is_some_and(Record::is_open)
    }

    /// Whether no node that was ever asked is to be asked.
    pub(super) fn is_open_everywhere(&self) -> bool {
        self.is_open() && self.nodes.lock().values().all(Record::is_open)
    }

    /// The nodes that are not asked, each with what may be asked to find out whether it is back.
    pub(super) fn given_up(&self) -> Vec<(StoreNode, Option<Arc<Target>>)> {
        let nodes = self.nodes.lock();
        let open = nodes.iter().filter(|(_, record)| record.is_open());
        open.map(|(node, record)| (*node, record.target.clone())).collect()
    }

    /// Forgets `node`, where nothing is any more.
    pub(super) fn forget(&self, node: StoreNode) {
        if self.nodes.lock().remove(&node).is_some_and(|record| record.is_open()) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Record {
    const fn is_open(&self) -> bool {
        self.failures >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_fails_and_answers_by_itself() {
        let breaker = Breaker::default();
        for _ in 0..3 {
            assert!(!breaker.is_open());
            breaker.answered(StoreNode(1));
            breaker.failed(StoreNode(2), None);
        }
        assert!(breaker.is_open() && breaker.is_open_for(StoreNode(2)) && !breaker.is_open_for(StoreNode(1)));
        assert!(!breaker.is_open_everywhere());
        breaker.silent(StoreNode(1), None);
        breaker.silent(StoreNode(1), None);
        assert!(breaker.is_open_everywhere());
        assert_eq!(breaker.given_up().len(), 2);
        breaker.answered(StoreNode(2));
        assert!(breaker.is_open() && !breaker.is_open_for(StoreNode(2)));
        breaker.forget(StoreNode(1));
        breaker.forget(StoreNode(2));
        assert!(!breaker.is_open());
    }
}
