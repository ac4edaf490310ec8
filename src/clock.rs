//! Where the time comes from. Everything else is told the time.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::limit::{Period, Timestamp};

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// The time now. May step back between calls.
    fn now(&self) -> Timestamp;
}

/// The system's wall clock: windows are aligned to the epoch on every instance, so it must be wall time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A clock that stands still until it is told otherwise, for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_nanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub const fn at(now: Timestamp) -> Self {
        Self { nanos: AtomicU64::new(now.as_nanos()) }
    }

    /// Makes it show `now`, be that later or earlier.
    pub fn set(&self, now: Timestamp) {
        self.nanos.store(now.as_nanos(), Ordering::Release);
    }

    /// Makes it show `period` more.
    pub fn advance(&self, period: Period) {
        self.set(self.now().after(period));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}
