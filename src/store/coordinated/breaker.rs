//! Whether the shared store is worth asking.

use std::sync::atomic::{AtomicU32, Ordering};

/// Failures in a row after which nobody waits for the store any more.
const PATIENCE: u32 = 3;

/// Opens when the store has failed several times in a row, and closes when it answers. While it is open decisions are
/// made at once without the store; the heartbeat and what has to come home go on trying.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: AtomicU32,
}

impl Breaker {
    /// The store has answered.
    pub(super) fn answered(&self) {
        // written only when it changes: it is read by every decision
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// The store has not answered, or not in time.
    pub(super) fn failed(&self) {
        if self.failures.load(Ordering::Relaxed) < PATIENCE {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether it is to be asked.
    pub(super) fn is_open(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= PATIENCE
    }
}
