//! How busy a counter is, here and at all instances together, and when its next flush is due by that.

use super::saturated;
use weir_limit::{Period, Tier, Timestamp};

/// The shortest time over which a rate is measured.
const SPAN: Period = Period::from_millis(20);

/// The fewest hits that give a rate. With fewer, the measurement continues up to [`LONGEST_SPAN`].
const MIN_HITS: u64 = 8;

/// The hits that give no rate while they are the only ones.
const FEW_HITS: u32 = 3;

/// Hits within this time may be a single burst, which predicts no hits while they are the only ones.
const BURST: Period = Period::from_millis(10);

/// The shortest time over which the first rate is measured.
const SHORT_SPAN: Period = Period::from_millis(50);

const LONGEST_SPAN: Period = Period::from_millis(500);

/// A gap, or step back of the clock, after which earlier measurements are discarded.
const GAP: Period = Period::from_secs(1);

/// Of the start of a span, in nanoseconds.
const UNIT: u64 = 10_000;

/// A moving average of received hits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// In units of 10 µs modulo 2^32: after 12 hours without a hit, the old rate may count for one more span.
    since: u32,
    hits: u32,
    /// The average of earlier spans, in hits per nanosecond. The last counts half, the one before a quarter, and so on.
    rate: f32,
}

/// The time between two replies from which the earlier rate counts for less than three quarters: it was measured in a
/// shorter time.
const KEPT: Period = Period::from_secs(1);

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

/// A pause lasts a fiftieth of the time to the limit, so that all instances together take a fiftieth of the rest in it.
const PAUSES_TO_LIMIT: u64 = 50;

/// The most intervals that such a pause may last.
const MAX_INTERVALS: u64 = 10;

/// The longest such pause, unless the interval itself is longer. Where rejected hits count, others read the number of
/// all hits, which has to be right in a second.
const MAX_PAUSE: Period = Period::from_millis(900);

/// All instances may take as many hits in a pause of a long period, if these are no more than a quarter of the rest: few,
/// and each would cost a call.
pub(super) const FEW_TO_LIMIT: u64 = 16;
const FEW_PAUSES_TO_LIMIT: u64 = 4;

/// The fraction of a period that such a pause may last.
const PAUSES_IN_PERIOD: u64 = 60;

const MAX_LONG_PAUSE: Period = Period::from_secs(60);

/// The hits above which an instance ends a pause, unless they are its part of those that the pause is for.
const ENDS_PAUSE: u64 = 8;

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

// === impl Demand ===

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
impl Demand {
    pub(crate) fn record(&mut self, hits: u64, now: Timestamp) {
        let span = self.span(now);
        if self.hits == 0 && self.rate == 0.0 {
            // the first ones
            self.since = units(now);
        } else if span >= SPAN && (u64::from(self.hits) >= MIN_HITS || span >= LONGEST_SPAN) {
            let rate = (f64::from(self.hits) / span.as_nanos() as f64) as f32;
            let weight = if span > GAP || self.rate == 0.0 { 0.0 } else { 0.5 };
            self.rate = self.rate * weight + rate * (1.0 - weight);
            (self.since, self.hits) = (units(now), 0);
        }
        self.hits = self.hits.saturating_add(u32::try_from(hits).unwrap_or(u32::MAX));
    }

    pub(crate) fn in_the_next(&self, time: Period, now: Timestamp) -> u64 {
        (self.rate_at(now) * time.as_nanos() as f64).ceil() as u64
    }

    /// In hits per nanosecond. Here the first hits of all count in full, even if they are a burst.
    pub(super) fn rate_with_burst(&self, now: Timestamp) -> f64 {
        let span = self.span(now).as_nanos().max(UNIT) as f64;
        if self.rate == 0.0 { f64::from(self.hits) / span } else { self.rate_at(now) }
    }

    pub(super) fn time_for(&self, hits: u64, now: Timestamp) -> Period {
        time_at(self.rate_at(now), hits)
    }

    fn span(&self, now: Timestamp) -> Period {
        let span = units(now).wrapping_sub(self.since);
        let has_stepped_back = self.since.wrapping_sub(units(now)) <= (GAP.as_nanos() / UNIT) as u32;
        if has_stepped_back { Period::default() } else { Period::from_nanos(u64::from(span) * UNIT) }
    }

    /// In hits per nanosecond.
    fn rate_at(&self, now: Timestamp) -> f64 {
        let span = self.span(now);
        if self.rate == 0.0 {
            // at first only the current span counts; a few hits that happen to be close give no rate
            let hits = if span < BURST { 0 } else { self.hits.saturating_sub(FEW_HITS) };
            return f64::from(hits) / span.max(SHORT_SPAN).as_nanos() as f64;
        }
        let span = span.max(SPAN).as_nanos() as f64;
        // when hits stop, the rate falls with the length of the current span
        f64::from(self.rate).min((u64::from(self.hits) + MIN_HITS) as f64 / span)
    }
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
            let weight = 0.75 * (KEPT.as_nanos() as f32 / time.as_nanos().max(1) as f32).min(1.0);
            self.rate = if rate > self.rate { rate } else { weight * self.rate + (1.0 - weight) * rate };
        }
        self.used = saturated(used);
    }

    /// [`Period::MAX`] while the rate is not known.
    pub(super) fn time_for(&self, hits: u64) -> Period {
        time_at(self.rate.into(), hits)
    }
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
        own > (share * 2 / PAUSES_TO_LIMIT).max(ENDS_PAUSE.min(share / 4)).max(1)
    }

    /// `left` is the time to the limit at the rate of all instances, and `few` that in which they take [`FEW_TO_LIMIT`].
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

/// Returns the time for `hits` at `rate`, in hits per nanosecond. [`Period::MAX`] while it is not known.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
pub(super) fn time_at(rate: f64, hits: u64) -> Period {
    if rate > 0.0 { Period::from_nanos((hits as f64 / rate) as u64) } else { Period::MAX }
}

#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
const fn units(at: Timestamp) -> u32 {
    (at.as_nanos() / UNIT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_rate_of_hits() {
        let mut demand = Demand::default();
        let mut now = Timestamp::from_secs(1_000);
        let mut run = |every: u64, times: u64| {
            for _ in 0..times {
                now = now.after(Period::from_millis(every));
                demand.record(1, now);
            }
            demand.in_the_next(Period::from_millis(100), now)
        };
        assert!((95..=105).contains(&run(1, 500)));
        assert!((9..=13).contains(&run(10, 500)));
        assert!(run(5_000, 1) <= 1, "a gap discards the rate");
    }

    /// `every` is in milliseconds. Returns the instant of the last hit.
    fn record(demand: &mut Demand, every: u64, times: u64, mut now: Timestamp) -> Timestamp {
        for _ in 0..times {
            now = now.after(Period::from_millis(every));
            demand.record(1, now);
        }
        now
    }

    const START: Timestamp = Timestamp::from_secs(1_000);
    const TENTH: Period = Period::from_millis(100);

    #[test]
    fn a_burst_predicts_nothing_while_its_hits_are_the_only_ones() {
        let mut demand = Demand::default();
        demand.record(500, START);
        let expected = |ms| demand.in_the_next(TENTH, START.after(Period::from_millis(ms)));
        assert_eq!((expected(9), expected(10)), (0, 994));
    }

    #[test]
    fn a_few_hits_that_happen_to_be_close_predict_nothing() {
        let mut demand = Demand::default();
        assert_eq!((demand.in_the_next(TENTH, START), demand.time_for(1, START)), (0, Period::MAX));
        let now = record(&mut demand, 1, 3, START);
        assert_eq!((demand.in_the_next(TENTH, now), demand.time_for(1, now)), (0, Period::MAX));
        // one more, in 28 ms, is no rate of 36 in 250 ms
        let now = record(&mut demand, 25, 1, now);
        assert!((1..=2).contains(&demand.in_the_next(TENTH, now)), "{}", demand.in_the_next(TENTH, now));
        // and many are a rate before a span has ended
        let mut demand = Demand::default();
        let now = record(&mut demand, 1, 13, START);
        assert_eq!(demand.in_the_next(TENTH, now), 20);
    }

    #[test]
    fn the_first_rate_applies_at_once_and_later_ones_by_half() {
        let mut demand = Demand::default();
        let now = record(&mut demand, 1, 33, START);
        assert!((90..=110).contains(&demand.in_the_next(TENTH, now)), "{}", demand.in_the_next(TENTH, now));
        let now = record(&mut demand, 1, 500, now);
        assert!((95..=105).contains(&demand.in_the_next(TENTH, now)));
        // one span with three times as many
        let mut last = now;
        for _ in 0..25 {
            last = last.after(Period::from_millis(1));
            demand.record(3, last);
        }
        assert!(
            (120..=220).contains(&demand.in_the_next(TENTH, last)),
            "{}",
            demand.in_the_next(TENTH, last)
        );
    }

    #[test]
    fn a_rate_of_before_a_gap_is_discarded() {
        // the last span begins 20 ms after the start, with 400 hits a second
        let after_gap = |gap: Period| {
            let mut demand = Demand::default();
            demand.record(8, START);
            let last = START.after(Period::from_millis(20));
            demand.record(8, last);
            let now = last.after(gap);
            demand.record(1, now);
            demand.in_the_next(TENTH, now)
        };
        // half of it and half of the 8 hits in the second; then these alone
        assert_eq!([0, UNIT].map(|more| after_gap(Period::from_nanos(GAP.as_nanos() + more))), [21, 1]);
    }

    #[test]
    fn the_time_for_some_hits_follows_from_the_rate() {
        let mut demand = Demand::default();
        let now = record(&mut demand, 2, 500, START);
        for hits in [1, 50, 10_000] {
            let time = demand.time_for(hits, now).as_nanos() / 1_000_000;
            assert!((19 * hits / 10..=21 * hits / 10).contains(&time), "{time} ms for {hits}");
        }
    }

    /// The units in which the start of a span is kept begin again at zero every twelve hours.
    #[test]
    fn a_span_outlasts_the_end_of_its_units_and_a_step_back_of_the_clock() {
        let end = Timestamp::from_nanos((7 * UNIT) << 32);
        let before = Timestamp::from_nanos(end.as_nanos() - 300_000_000);
        let mut demand = Demand::default();
        let now = record(&mut demand, 1, 600, before);
        assert!(now > end);
        assert!((95..=105).contains(&demand.in_the_next(TENTH, now)), "{}", demand.in_the_next(TENTH, now));
        let earlier = Timestamp::from_nanos(now.as_nanos() - 900_000_000);
        assert_eq!(demand.span(earlier), Period::default());
        demand.record(1, earlier);
        assert!((95..=105).contains(&demand.in_the_next(TENTH, now)), "{}", demand.in_the_next(TENTH, now));
        // after a longer step it is measured again
        let earlier = Timestamp::from_nanos(now.as_nanos() - 30_000_000_000);
        let again = record(&mut demand, 1, 100, earlier);
        assert!(
            (90..=105).contains(&demand.in_the_next(TENTH, again)),
            "{}",
            demand.in_the_next(TENTH, again)
        );
        assert_eq!(demand.in_the_next(TENTH, again.after(Period::from_secs(11 * 3_600))), 1);
    }

    /// Some may be late by chance, so that the rate falls slowly.
    #[test]
    fn when_hits_stop_the_rate_falls() {
        let mut demand = Demand::default();
        let now = record(&mut demand, 1, 500, START);
        let expected = |after: u64| demand.in_the_next(TENTH, now.after(Period::from_millis(after)));
        let falling: Vec<u64> = [0, 100, 400, 900, 30_000].into_iter().map(expected).collect();
        assert!(falling.is_sorted_by(|a, b| a > b), "{falling:?}");
        assert!(falling[2] <= 10 && falling[3] >= 1 && falling[4] == 1, "{falling:?}");
    }

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
