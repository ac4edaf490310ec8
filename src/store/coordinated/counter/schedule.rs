//! When the next flush of a counter is due.

use crate::limit::{Period, Timestamp};

/// The fraction of the time to the limit that one pause may last: a fiftieth, so that all instances together take at most a
/// fiftieth of the remaining hits in it.
const PAUSES_TO_LIMIT: u64 = 50;

/// The most intervals that a pause may last.
const MAX_INTERVALS: u64 = 10;

/// The longest pause, unless the interval itself is longer.
const MAX_PAUSE: Period = Period::from_secs(1);

/// The fraction of the time to the limit after which a flush is early: a third. Half of the time would be too long, since the others have
/// taken hits too that they had not reported when the rest was measured.
const EARLY: u64 = 3;

/// The time of a counter's next flush.
#[derive(Debug, Default)]
pub(in super::super) struct FlushSchedule {
    /// The flush is urgent from this instant on. Zero while the limit is far away.
    early: Timestamp,
    /// The sync interval in microseconds.
    interval: u32,
    /// The longest time until the next flush in microseconds: the interval, or longer while the limit is far away.
    pause: u32,
}

// === impl FlushSchedule ===

impl FlushSchedule {
    pub(super) fn new(interval: Period) -> Self {
        let interval = micros(interval);
        Self { interval, pause: interval, ..Self::default() }
    }

    /// Returns the sync interval: at most 71 minutes.
    pub(in super::super) fn interval(&self) -> Period {
        period(self.interval)
    }

    /// Returns the longest time until the next flush: the interval, or longer while the limit is far away.
    pub(in super::super) fn pause(&self) -> Period {
        period(self.pause)
    }

    /// Returns whether `own` hits, taken here since the last flush, exceed the plan for a long pause: twice the fiftieth of
    /// `part`, this instance's equal share of the remaining hits. This way every instance that receives some of a burst after
    /// a quiet period reports it. A single hit is not a burst.
    pub(super) fn is_outrun(&self, own: u64, part: u64) -> bool {
        self.pause > self.interval && own > (2 * part / PAUSES_TO_LIMIT).max(1)
    }

    /// Returns whether the flush is urgent at `now`, because the limit is close at the rate of all instances.
    pub(super) fn is_early(&self, now: Timestamp) -> bool {
        self.early > Timestamp::default() && now >= self.early
    }

    /// Returns whether the time until the early flush was less than an interval as of the reply at `last_reply_at`.
    pub(super) fn is_close(&self, last_reply_at: Option<Timestamp>) -> bool {
        self.early.since(last_reply_at.unwrap_or_default()) < self.interval()
    }

    /// Plans the next flush. The limit is reached after the time `left`, at the rate of all instances.
    pub(super) fn plan(&mut self, left: Period, now: Timestamp) {
        let far = Period::from_nanos(left.as_nanos() / PAUSES_TO_LIMIT);
        let interval = self.interval();
        let most = Period::from_nanos(interval.as_nanos().saturating_mul(MAX_INTERVALS)).min(MAX_PAUSE);
        self.pause = micros(far.min(most)).max(self.interval);
        // a part of the remaining time, so that the last flush before the limit is recent; while the limit is far away,
        // flushes need not be punctual, and share batches
        let early = Period::from_nanos(left.as_nanos() / EARLY);
        self.early =
            if self.pause == self.interval { now.after(early.min(interval)) } else { Timestamp::default() };
    }
}

/// Converts to microseconds, rounded up.
fn micros(period: Period) -> u32 {
    u32::try_from(period.as_nanos().div_ceil(1_000)).unwrap_or(u32::MAX)
}

fn period(micros: u32) -> Period {
    Period::from_nanos(u64::from(micros) * 1_000)
}
