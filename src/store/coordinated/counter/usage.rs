//! The rate at which all instances together use a counter.

use crate::limit::{Period, Timestamp};

/// The bits by which the instant of the creation is shortened.
const COARSE: u32 = 16;

/// Earlier measurements are too low, because the other instances have not reported their hits yet.
const WARM_UP: u8 = 4;

/// The rate at which all instances together use a counter, measured from the store's replies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageRate {
    /// When it was created, in units of 2^16 ns modulo 2^32: every 78 hours a counter is new again for one interval.
    created: u32,
    /// As of the last reply.
    used: u32,
    /// In hits per nanosecond.
    rate: f32,
}

// === impl UsageRate ===

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
impl UsageRate {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { created: coarse(now), ..Self::default() }
    }

    /// Records a reply as of `now` that counts `used` hits. `last` is the instant of the reply before; the counter
    /// keeps the number of `replies` to save space. During the warm-up and the first sync `interval`, all instances are
    /// assumed to have taken `by_all` since `last`. The rate stays in a new window, and while no hit is admitted.
    pub(super) fn record(
        &mut self,
        replies: &mut u8,
        used: u64,
        by_all: u64,
        interval: Period,
        last: Option<Timestamp>,
        now: Timestamp,
    ) {
        let age = coarse(now).wrapping_sub(self.created);
        // the clock of the node that replies first may be behind that of the one that the creation was dated by
        let first = if age > u32::MAX / 2 { 1 } else { age.max(1) };
        let [age, first] = [age, first].map(|units| u64::from(units) << COARSE);
        let time = last.map_or(first, |last| now.since(last).as_nanos());
        // hits that were counted before the counter was created here do not belong to this time span
        let mut hits = if *replies == 0 { 0 } else { used.saturating_sub(self.used.into()) };
        if *replies < WARM_UP || age < interval.as_nanos() {
            *replies = replies.saturating_add(1);
            hits = hits.max(by_all);
        }
        if time > 0 && hits > 0 {
            let rate = (hits as f64 / time as f64) as f32;
            // a higher rate applies at once: an early flush costs little, a late one admits hits above the limit
            self.rate = if rate > self.rate { rate } else { 0.75 * self.rate + 0.25 * rate };
        }
        self.used = u32::try_from(used).unwrap_or(u32::MAX);
    }

    /// [`Period::MAX`] while the rate is not known.
    pub(super) fn time_for(&self, hits: u64) -> Period {
        if self.rate > 0.0 {
            Period::from_nanos((hits as f64 / f64::from(self.rate)) as u64)
        } else {
            Period::MAX
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
const fn coarse(at: Timestamp) -> u32 {
    (at.as_nanos() >> COARSE) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of a cluster have clocks of their own.
    #[test]
    fn a_first_reply_that_is_dated_before_the_creation_is_one_of_a_short_time() {
        let created = Timestamp::from_secs(1_000);
        let shortest = Period::from_nanos(1 << COARSE);
        for (now, time) in [
            (created.after(Period::from_millis(2)), Period::from_millis(2)),
            (created, shortest),
            (Timestamp::from_nanos(created.as_nanos() - 2_000_000), shortest),
        ] {
            let mut usage = UsageRate::new(created);
            let interval = Period::from_millis(100);
            usage.record(&mut 0, 30, 3 * 10, interval, None, now);
            // the instants are rounded
            let (measured, time) = (usage.time_for(30).as_nanos(), time.as_nanos());
            assert!(measured.abs_diff(time) <= shortest.as_nanos(), "{measured} ns at {now:?}");
        }
    }
}
