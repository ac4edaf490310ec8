//! Bounds the background commands on one connection, so that a decision waits for few of them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, SemaphorePermit};

use weir_store::remote::Urgency;

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
    opened: Instant,
    /// In milliseconds since `opened`, plus one; 0 if there was none.
    last_decision: AtomicU64,
}

// === impl BackgroundWindow ===

impl BackgroundWindow {
    /// A call is in flight as long as its permit is held.
    pub(super) async fn enter(&self) -> Option<SemaphorePermit<'_>> {
        // does not fail: the semaphore is never closed
        self.in_flight.acquire().await.ok()
    }

    pub(super) fn record_decision(&self) {
        self.last_decision.store(self.millis() + 1, Ordering::Relaxed);
    }

    pub(super) fn cost(&self, urgency: Urgency) -> usize {
        if urgency == Urgency::Decision {
            return DECISIONS;
        }
        let last = self.last_decision.load(Ordering::Relaxed);
        let recent = u64::try_from(RECENT.as_millis()).unwrap_or(u64::MAX);
        if last > 0 && self.millis() - (last - 1) < recent { SHORT } else { LONG }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or_default()
    }
}

impl Default for BackgroundWindow {
    fn default() -> Self {
        Self {
            in_flight: Semaphore::new(IN_FLIGHT),
            opened: Instant::now(),
            last_decision: AtomicU64::new(0),
        }
    }
}
