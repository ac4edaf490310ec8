//! Wall clocks that follow tokio's, each off by as much as is wanted.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use tokio::time::Instant;

use crate::{clock::Clock, limit::Timestamp};

/// A wall clock that goes with tokio's clock, so that it stands when that is paused. Copies show the same time.
#[derive(Clone, Debug)]
pub struct SimulatedClock {
    /// When it was made.
    begun: Instant,
    /// What a right clock showed then.
    epoch: Timestamp,
    /// Nanoseconds that it is ahead of a right clock, or behind.
    offset: Arc<AtomicI64>,
}

// === impl SimulatedClock ===

impl SimulatedClock {
    /// A right clock, which shows `epoch` now.
    #[must_use]
    pub fn new(epoch: Timestamp) -> Self {
        Self { begun: Instant::now(), epoch, offset: Arc::default() }
    }

    /// A further clock that is `nanos` nanoseconds ahead of the right one, or behind.
    #[must_use]
    pub fn skewed(&self, nanos: i64) -> Self {
        Self { offset: Arc::new(AtomicI64::new(nanos)), ..self.clone() }
    }

    /// Makes it, and all copies of it, show `nanos` nanoseconds more than a right clock, or less.
    pub fn set_offset(&self, nanos: i64) {
        self.offset.store(nanos, Ordering::Relaxed);
    }

    /// What a right clock shows.
    #[must_use]
    pub fn right(&self) -> Timestamp {
        let elapsed = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Timestamp::from_nanos(self.epoch.as_nanos().saturating_add(elapsed))
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let offset = self.offset.load(Ordering::Relaxed);
        Timestamp::from_nanos(self.right().as_nanos().saturating_add_signed(offset))
    }
}
