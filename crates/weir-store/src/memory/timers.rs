//! The timers of all lines: one for each key that callers wait for.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use weir_limit::{CounterKey, Timestamp};

/// The timers of the lines of a store, earliest first.
#[derive(Debug, Default)]
pub struct Timers {
    queue: Mutex<BTreeSet<(Timestamp, CounterKey)>>,
    rung: Notify,
}

// === impl Timers ===

impl Timers {
    /// Ends a wait for [`Timers::rung`].
    pub fn ring(&self) {
        self.rung.notify_one();
    }

    /// Waits until another timer is the next one, or for [`Timers::ring`].
    pub async fn rung(&self) {
        self.rung.notified().await;
    }

    pub(super) fn due(&self, now: Timestamp) -> Option<(Timestamp, CounterKey)> {
        self.queue.lock().first().copied().filter(|(instant, _)| *instant <= now)
    }

    /// Returns when [`MemoryStore::serve_lines`](super::MemoryStore::serve_lines) has something to do next. None while
    /// nobody waits.
    pub fn next(&self) -> Option<Timestamp> {
        self.queue.lock().first().map(|(instant, _)| *instant)
    }

    pub(super) fn set(&self, key: CounterKey, before: Option<Timestamp>, after: Option<Timestamp>) {
        let mut queue = self.queue.lock();
        if let Some(before) = before {
            queue.remove(&(before, key));
        }
        if let Some(after) = after {
            queue.insert((after, key));
            if queue.first() == Some(&(after, key)) {
                self.rung.notify_one();
            }
        }
    }
}
