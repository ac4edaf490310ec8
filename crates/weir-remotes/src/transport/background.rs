//! Bounds the background commands on one connection, so that a decision waits for few of them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use weir_store::remote::CallPriority;

/// One that the server works at, and one that is on its way.
const IN_FLIGHT: usize = 2;

/// After a decision, others are expected for this time.
const RECENT: Duration = Duration::from_secs(10);

/// The cost of one call of decisions: the scripts of a full call of coordination. A server needs about 3 us for a unit.
const DECISIONS: usize = 256;

/// The cost of a background pipeline while decisions are expected, which wait for what the server has begun.
const SHORT: usize = 32;

/// The same while none are expected. Long pipelines are fewer.
const LONG: usize = 1_024;

pub(super) struct BackgroundWindow {
    in_flight: Semaphore,
    last_decision: Mutex<Option<Instant>>,
}

// === impl BackgroundWindow ===

impl BackgroundWindow {
    /// A call is in flight as long as its permit is held.
    pub(super) async fn enter(&self) -> Option<SemaphorePermit<'_>> {
        // does not fail: the semaphore is never closed
        self.in_flight.acquire().await.ok()
    }

    pub(super) fn record_decision(&self) {
        *self.last_decision.lock() = Some(Instant::now());
    }

    pub(super) fn cost(&self, priority: CallPriority) -> usize {
        match priority {
            CallPriority::Decision => DECISIONS,
            CallPriority::Background
                if self.last_decision.lock().is_some_and(|last| last.elapsed() < RECENT) =>
            {
                SHORT
            }
            CallPriority::Background => LONG,
        }
    }
}

impl Default for BackgroundWindow {
    fn default() -> Self {
        Self { in_flight: Semaphore::new(IN_FLIGHT), last_decision: Mutex::default() }
    }
}
