//! Wall clocks that follow tokio's clock, each with an offset of its own.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use tokio::time::Instant;

use weir_limit::{Period, Timestamp};
use weir_store::clock::Clock;

/// Shows simulated time while tokio's clock is paused. Copies show the same time. Threads that are no part of the
/// runtime know nothing of the pause: they see how long the simulation takes.
#[derive(Clone, Debug)]
pub struct SimulatedClock {
    created: Instant,
    /// The correct time at `created`.
    epoch: Timestamp,
    /// Nanoseconds ahead of the correct time; negative if it is behind.
    offset: Arc<AtomicI64>,
}

// === impl SimulatedClock ===

impl SimulatedClock {
    pub fn new(epoch: Timestamp) -> Self {
        Self { created: Instant::now(), epoch, offset: Arc::default() }
    }

    /// Returns another clock that is `nanos` nanoseconds ahead of the correct time; behind if negative.
    pub fn skewed(&self, nanos: i64) -> Self {
        Self { offset: Arc::new(AtomicI64::new(nanos)), ..self.clone() }
    }

    pub fn set_offset(&self, nanos: i64) {
        self.offset.store(nanos, Ordering::Relaxed);
    }

    pub fn right(&self) -> Timestamp {
        let elapsed = u64::try_from(self.created.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Timestamp::from_nanos(self.epoch.as_nanos().saturating_add(elapsed))
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let offset = self.offset.load(Ordering::Relaxed);
        Timestamp::from_nanos(self.right().as_nanos().saturating_add_signed(offset))
    }

    fn uptime(&self) -> Period {
        self.right().since(self.epoch)
    }
}
