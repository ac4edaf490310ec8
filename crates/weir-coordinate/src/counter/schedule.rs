//! When the next flush of a counter is due.

use weir_limit::{Period, Tier, Timestamp};

/// A pause lasts a fiftieth of the time to the limit, so that all instances together take a fiftieth of the rest in it.
const PAUSES_TO_LIMIT: u64 = 50;

/// The most intervals that such a pause may last.
const MAX_INTERVALS: u64 = 10;

/// The longest such pause, unless the interval itself is longer. Where rejected hits count, others read the number of
/// all hits, which has to be right in a second.
const MAX_PAUSE: Period = Period::from_millis(900);

/// All instances may take as many hits in a pause of a long period, if these are no more than a quarter of the rest: few,
/// and each would cost a call.
pub(super) const FEW_HITS: u64 = 16;
const FEW_PAUSES_TO_LIMIT: u64 = 4;

/// The fraction of a period that such a pause may last.
const PAUSES_IN_PERIOD: u64 = 100;

const MAX_LONG_PAUSE: Period = Period::from_secs(60);

/// The hits above which an instance ends a pause, unless they are its part of those that the pause is for.
const BURST: u64 = 8;

/// A flush is early after a third of the time to the limit. Half would be too long: others have unreported hits too.
const EARLY: u64 = 3;

#[derive(Debug, Default)]
pub(crate) struct FlushSchedule {
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
    pub(crate) fn set_interval(&mut self, interval: Period) {
        if micros(interval) != self.interval {
            *self = Self::new(interval);
        }
    }

    /// At most 71 minutes.
    pub(crate) fn interval(&self) -> Period {
        period(self.interval)
    }

    pub(crate) fn pause(&self) -> Period {
        period(self.next.max(self.interval))
    }

    /// Returns whether a flush is early with `own` hits since the last one, of this instance's `share` of the rest. A
    /// single hit ends no long pause.
    pub(super) fn is_early(&self, own: u64, share: u64, last_reply_at: Timestamp, now: Timestamp) -> bool {
        if self.next <= self.interval {
            return now >= last_reply_at.after(period(self.next));
        }
        // so every instance that receives some of a burst reports it
        own > (share * 2 / PAUSES_TO_LIMIT).max(BURST.min(share / 4)).max(1)
    }

    /// `left` is the time to the limit at the rate of all instances, and `few` that in which they take [`FEW_HITS`].
    /// `tiers` are those whose periods allow for long pauses.
    pub(super) fn plan(&mut self, left: Period, few: Period, tiers: &[Tier]) {
        let interval = self.interval();
        let mut pause = (left / PAUSES_TO_LIMIT).min(interval * MAX_INTERVALS).min(MAX_PAUSE);
        // while no rate is known, it may be any
        if left < Period::MAX {
            let long = tiers.iter().map(|tier| tier.period / PAUSES_IN_PERIOD).min().unwrap_or_default();
            pause = pause.max(long.min(left / FEW_PAUSES_TO_LIMIT).min(few).min(MAX_LONG_PAUSE));
        }
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
