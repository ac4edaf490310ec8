//! When the next flush of a counter is due.

use crate::limit::{Period, Tier, Timestamp};

/// A pause lasts a fiftieth of the time to the limit, so that all instances together take a fiftieth of the rest in it.
const PAUSES_TO_LIMIT: u64 = 50;

/// The most intervals that a pause may last.
const MAX_INTERVALS: u64 = 10;

/// The longest pause, unless the interval itself is longer, or the limit is slow.
const MAX_PAUSE: Period = Period::from_secs(1);

/// The most hits of all instances in a pause of a slow limit: few, and each would cost a call.
pub(super) const SLOW_HITS: u64 = 16;

/// The hits above which an instance ends a pause of a slow limit.
const SLOW_BURST: u64 = 8;

/// The fraction of the period of a slow limit that a pause may last, and that of the time to the limit.
const SLOW_PAUSES_IN_PERIOD: u64 = 100;
const SLOW_PAUSES_TO_LIMIT: u64 = 4;

const MAX_SLOW_PAUSE: Period = Period::from_secs(60);

/// A flush is early after a third of the time to the limit. Half would be too long: others have unreported hits too.
const EARLY: u64 = 3;

#[derive(Debug)]
pub(in super::super) struct FlushSchedule {
    /// In microseconds.
    interval: u32,
    /// In microseconds. If longer than the interval, the longest time until the next flush. Otherwise the time after
    /// the last reply from which a flush is urgent.
    next: u32,
}

// === impl FlushSchedule ===

impl FlushSchedule {
    pub(super) fn new(interval: Period) -> Self {
        let interval = micros(interval);
        Self { interval, next: interval }
    }

    /// A flush that is planned already stays so.
    pub(in super::super) fn set_interval(&mut self, interval: Period) {
        if micros(interval) != self.interval {
            *self = Self::new(interval);
        }
    }

    /// At most 71 minutes.
    pub(in super::super) fn interval(&self) -> Period {
        period(self.interval)
    }

    pub(in super::super) fn pause(&self) -> Period {
        period(self.next.max(self.interval))
    }

    pub(in super::super) fn is_slow(&self) -> bool {
        self.is_far() && self.pause() > MAX_PAUSE
    }

    /// How long the last reply says something of others' hits. Those of a slow limit are often far apart by chance.
    pub(super) fn known_for(&self) -> Period {
        self.pause() * if self.is_slow() { 4 } else { 2 }
    }

    /// Returns whether `own` hits since the last flush exceed the plan for a long pause. `part` is this instance's
    /// share of the rest. So every instance that receives some of a burst reports it. A single hit is no burst.
    pub(super) fn is_outrun(&self, own: u64, part: u64) -> bool {
        let most = if self.is_slow() { (part / 4).min(SLOW_BURST) } else { 2 * part / PAUSES_TO_LIMIT };
        self.is_far() && own > most.max(1)
    }

    /// Returns whether the limit is so close, at the rate of all instances, that the flush is urgent.
    pub(super) fn is_early(&self, last_reply_at: Timestamp, now: Timestamp) -> bool {
        !self.is_far() && now >= last_reply_at.after(period(self.next))
    }

    /// Returns whether the time until the early flush was less than an interval as of the store's last reply.
    pub(super) const fn is_close(&self) -> bool {
        self.next < self.interval
    }

    const fn is_far(&self) -> bool {
        self.next > self.interval
    }

    /// `left` is the time to the limit at the rate of all instances, and `few` that in which they take [`SLOW_HITS`].
    pub(super) fn plan(&mut self, left: Period, few: Period, tiers: &[Tier]) {
        let interval = self.interval();
        let far = (left / PAUSES_TO_LIMIT).min(interval * MAX_INTERVALS).min(MAX_PAUSE);
        let slow = tiers.iter().map(|tier| tier.period / SLOW_PAUSES_IN_PERIOD);
        let slow = slow.fold((left / SLOW_PAUSES_TO_LIMIT).min(few), Period::min);
        // while no rate is known, it may be any
        let is_slow = slow > MAX_PAUSE && left < Period::MAX;
        let pause = if is_slow { slow.min(MAX_SLOW_PAUSE) } else { far };
        // a part of the remaining time, so that the last flush before the limit is recent; while the limit is far away,
        // flushes need not be punctual, and share batches
        let early = (left / EARLY).min(interval);
        self.next = micros(if pause > interval { pause } else { early });
    }
}

fn micros(period: Period) -> u32 {
    u32::try_from(period.as_nanos().div_ceil(1_000)).unwrap_or(u32::MAX)
}

fn period(micros: u32) -> Period {
    Period::from_nanos(u64::from(micros) * 1_000)
}
