//! The rate at which all instances together use a counter.

use super::{demand::time_at, tiers::saturated};
use crate::limit::Period;

/// Earlier measurements are too low, because the other instances have not reported their hits yet.
const WARM_UP: u8 = 4;

/// The rate at which all instances together use a counter, measured from the store's replies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageRate {
    /// As of the last reply.
    used: u32,
    /// In hits per nanosecond.
    rate: f32,
    /// Those that it was measured from, as long as their number matters.
    replies: u8,
}

// === impl UsageRate ===

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an estimate")]
impl UsageRate {
    /// Records a reply that counts `used` hits, some `time` after the one before it. If the others are as busy as this
    /// instance, as is assumed at first, the rate is `by_all`. It stays in a new window, and while no hit is admitted.
    pub(super) fn record(&mut self, used: u64, by_all: f64, time: Period) {
        let hits = used.saturating_sub(self.used.into());
        // what was counted before the first reply does not belong to this time
        let is_measured = self.replies > 0 && time > Period::default();
        let mut rate = if is_measured { hits as f64 / time.as_nanos() as f64 } else { 0.0 };
        if self.replies < WARM_UP {
            self.replies += 1;
            rate = rate.max(by_all);
        }
        let rate = rate as f32;
        if rate > 0.0 {
            // a higher rate applies at once: an early flush costs little, a late one admits hits above the limit
            self.rate = if rate > self.rate { rate } else { 0.75 * self.rate + 0.25 * rate };
        }
        self.used = saturated(used);
    }

    /// [`Period::MAX`] while the rate is not known.
    pub(super) fn time_for(&self, hits: u64) -> Period {
        time_at(self.rate.into(), hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_all_instances_follows_from_the_store_s_counts() {
        let mut rate = UsageRate::default();
        assert_eq!(rate.time_for(1), Period::MAX);
        let mut used = 700_u64;
        // the hits of all, and those of this instance, of three, in that time; tenths of a second for 1,000 hits
        for (hits, own, millis, tenths) in [
            // at first the others are assumed to have taken as many; what was counted before does not matter
            (0, 10_u32, 200_u32, 67),
            // a higher rate applies at once: 300 a second, if the others are as busy, and 500 if they are busier
            (10, 10, 100, 33),
            (50, 10, 100, 20),
            // a lower one by a quarter: 3/4 of 500 and 1/4 of 300
            (10, 10, 100, 22),
            // the fifth reply is used unchanged: 3/4 of 450 and 1/4 of 100
            (10, 10, 100, 28),
            // without hits, or without time, nothing is learnt
            (0, 0, 100, 28),
            (10, 10, 0, 28),
        ] {
            used += hits;
            let by_all = f64::from(3 * own) / (f64::from(millis) * 1e6);
            rate.record(used, by_all, Period::from_millis(millis.into()));
            assert_eq!((rate.time_for(1_000).as_nanos() + 50_000_000) / 100_000_000, tenths, "{hits}, {own}");
        }
        // nor in a new window
        rate.record(5, 0.0, Period::from_secs(1));
        assert_eq!((rate.time_for(1_000).as_nanos() + 50_000_000) / 100_000_000, 28);
    }
}
