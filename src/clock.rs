//! The clocks. All other code receives the time as a parameter.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::limit::{Period, Timestamp};

/// A source of wall-clock time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time. It may step back between calls.
    fn now(&self) -> Timestamp;

    /// Returns whether it shows the system's time, so that the system's timers measure it too. Not one that a test or a
    /// simulation sets.
    fn is_system(&self) -> bool {
        false
    }
}

/// The system's wall clock. All instances align windows to the epoch, so monotonic time cannot be used.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A clock that changes only when it is set, for tests and simulations.
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

    fn is_system(&self) -> bool {
        true
    }
}

impl ManualClock {
    /// Creates a clock whose time is `now`.
    #[must_use]
    pub const fn at(now: Timestamp) -> Self {
        Self { nanos: AtomicU64::new(now.as_nanos()) }
    }

    /// Sets the time to `now`, later or earlier.
    pub fn set(&self, now: Timestamp) {
        self.nanos.store(now.as_nanos(), Ordering::Release);
    }

    /// Advances the time by `period`.
    pub fn advance(&self, period: Period) {
        self.set(self.now().after(period));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}
