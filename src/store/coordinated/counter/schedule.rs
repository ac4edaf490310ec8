//! When the next flush of a counter is due.

use crate::limit::{Period, Timestamp};

/// A pause is longer than the interval while the limit is more than as many pauses away, at the rate of all instances …
const FAR: u64 = 50;

/// … up to as many intervals …
const MAX_INTERVALS: u64 = 10;

/// … and no longer than this, or than the interval if that is longer.
const MAX_PAUSE: Period = Period::from_secs(1);

/// When the next flush of a counter is due.
#[derive(Debug, Default)]
pub(in super::super) struct FlushSchedule {
    /// A flush that is not urgent waits until this instant.
    pub(in super::super) due: Timestamp,
    /// The flush is urgent from this instant on. None while the limit is far away.
    pub(super) early: Option<Timestamp>,
    /// The sync interval.
    pub(in super::super) interval: Period,
    /// The longest time until the next flush: the interval, or longer while the limit is far away.
    pub(in super::super) pause: Period,
}

// === impl FlushSchedule ===

impl FlushSchedule {
    pub(super) fn new(interval: Period) -> Self {
        Self { interval, pause: interval, ..Self::default() }
    }

    /// Returns whether `own` hits, taken here since the last flush, exceed the plan for a long pause: twice an even share of
    /// a fiftieth of what remained, given this instance's `part` of that. So a burst after a quiet period is reported by all
    /// instances that receive some of it. A single hit is no burst.
    pub(super) fn is_outrun(&self, own: u64, part: u64) -> bool {
        self.pause > self.interval && own > (2 * part / FAR).max(1)
    }

    /// Plans the next flush. The limit is reached after the time `left`, at the rate of all instances.
    pub(super) fn plan(&mut self, left: Period, now: Timestamp) {
        // in one pause all instances together take a fiftieth of what remains, at most
        let far = Period::from_nanos(left.as_nanos() / FAR);
        let most = Period::from_nanos(self.interval.as_nanos().saturating_mul(MAX_INTERVALS)).min(MAX_PAUSE);
        self.pause = far.min(most).max(self.interval);
        // half of the time that is left, so that the last flush before the limit is recent; while the limit is far away,
        // flushes need not be on time and share batches
        let half = Period::from_nanos(left.as_nanos() / 2);
        self.early = (self.pause == self.interval).then(|| now.after(half.min(self.interval)));
    }
}
