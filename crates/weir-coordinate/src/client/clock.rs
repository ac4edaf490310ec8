//! An estimate of the shared store's clock. All instances align windows to that clock.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::StoreTime;
use weir_limit::{Period, Timestamp};
use weir_store::clock::{Reading, STEP};

/// The assumed drift between two clocks, in parts per million.
const DRIFT: u64 = 200;

/// By the best measurement, once there is one.
#[derive(Debug, Default)]
pub(crate) struct StoreClock(ArcSwapOption<ClockSample>);

#[derive(Clone, Copy, Debug)]
struct ClockSample {
    /// The store's clock minus this instance's, in nanoseconds.
    offset: i64,
    /// The most that `offset` can be wrong by, either way, in nanoseconds: half of the round trip.
    error: u64,
    /// On this instance's clock.
    at: Timestamp,
}

// === impl StoreClock ===

impl StoreClock {
    /// `store_time` is of some instant between `sent` and `received`. The measurement with the shortest round trip
    /// wins, until drift has made it less precise. Returns whether one of the clocks was set.
    pub(super) fn record(&self, sent: Reading, received: Reading, store_time: Timestamp) -> bool {
        let round_trip = received.uptime.as_nanos().saturating_sub(sent.uptime.as_nanos());
        let middle = received.now.as_nanos().saturating_sub(round_trip.div_ceil(2));
        let sample = ClockSample {
            offset: store_time.as_nanos().cast_signed().wrapping_sub(middle.cast_signed()),
            error: round_trip / 2,
            at: received.now,
        };
        let best = self.best();
        let contradicted = best.filter(|best| best.contradicts(&sample, received.now));
        if best.is_none_or(|best| sample.error <= best.error_at(received.now)) || contradicted.is_some() {
            self.0.store(Some(Arc::new(sample)));
        }
        contradicted.is_some_and(|best| sample.offset.abs_diff(best.offset) >= STEP.as_nanos())
    }

    fn best(&self) -> Option<ClockSample> {
        self.0.load().as_deref().copied()
    }

    /// Until the first measurement the clocks are assumed to be equal.
    pub(super) fn at(&self, now: Timestamp) -> StoreTime {
        self.best().map_or(StoreTime { now, latest: now }, |sample| {
            let there = Timestamp::from_nanos(now.as_nanos().saturating_add_signed(sample.offset));
            StoreTime { now: there, latest: there.after(Period::from_nanos(sample.error_at(now))) }
        })
    }

    /// Returns whether the store has replied, so that something is known.
    pub(crate) fn is_measured(&self) -> bool {
        self.best().is_some()
    }

    /// In nanoseconds; negative if the store's clock is behind, zero before the first measurement.
    pub(crate) fn offset(&self) -> i64 {
        self.best().map_or(0, |sample| sample.offset)
    }
}

impl ClockSample {
    fn error_at(&self, now: Timestamp) -> u64 {
        let age = now.since(self.at).as_nanos();
        self.error.saturating_add(age / 1_000_000 * DRIFT)
    }

    /// Returns whether one of them must be wrong: then a clock was set.
    fn contradicts(&self, newer: &Self, now: Timestamp) -> bool {
        self.offset.abs_diff(newer.offset) > self.error_at(now) + newer.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn look(now: Timestamp) -> Reading {
        Reading { now, uptime: now.since(Timestamp::default()) }
    }

    /// A look at a clock that is `ahead` by as many milliseconds, `millis` milliseconds after the start.
    fn stepped(millis: u64, ahead: i64) -> Reading {
        Reading { now: ms(millis.saturating_add_signed(ahead)), ..look(ms(millis)) }
    }

    #[test]
    fn the_measurement_with_the_shortest_round_trip_is_used() {
        let clock = StoreClock::default();
        assert_eq!(clock.at(ms(5)).now, ms(5));
        clock.record(look(ms(1_000)), look(ms(1_010)), ms(1_505));
        assert_eq!((clock.at(ms(2_000)).now, clock.offset()), (ms(2_500), 500_000_000));
        // a slow reply is less precise
        clock.record(look(ms(1_020)), look(ms(1_100)), ms(1_530));
        assert_eq!(clock.at(ms(2_000)).now, ms(2_500));
        clock.record(look(ms(1_200)), look(ms(1_202)), ms(1_702));
        assert_eq!(clock.at(ms(2_000)).now, ms(2_501));
    }

    #[test]
    fn the_latest_possible_time_is_never_too_early() {
        let clock = StoreClock::default();
        // the true offset may be anywhere from 490 to 500 ms
        clock.record(look(ms(1_000)), look(ms(1_010)), ms(1_500));
        let then = clock.at(ms(1_010));
        assert!(then.latest >= ms(1_510) && then.latest <= ms(1_511), "{then:?}");
    }

    #[test]
    fn a_newer_measurement_replaces_a_contradicting_one() {
        let clock = StoreClock::default();
        clock.record(look(ms(1_000)), look(ms(1_001)), ms(1_000));
        clock.record(look(ms(2_000)), look(ms(2_050)), ms(9_000));
        assert_eq!(clock.at(ms(2_050)).now, ms(9_025));
    }

    #[test]
    fn a_less_precise_measurement_that_can_be_correct_replaces_none() {
        let with_offset = |offset: u64| {
            let clock = StoreClock::default();
            clock.record(look(ms(1_000)), look(ms(1_001)), Timestamp::from_nanos(1_000_500_000));
            // the middle of a round trip of 50 ms, and the offset
            clock.record(look(ms(1_001)), look(ms(1_051)), Timestamp::from_nanos(1_026_000_000 + offset));
            clock.offset()
        };
        // half of each round trip, and a drift of 10 us in the 50 ms between the replies
        let largest = 500_000 + 25_000_000 + 10_000;
        assert_eq!((with_offset(largest), with_offset(largest + 1)), (0, largest.cast_signed() + 1));
    }

    #[test]
    fn a_measurement_becomes_less_precise_by_200_microseconds_in_a_second() {
        let clock = StoreClock::default();
        clock.record(look(ms(1_000)), look(ms(1_010)), ms(1_005));
        let then = clock.at(ms(1_001_010));
        assert_eq!((then.now, then.latest), (ms(1_001_010), ms(1_001_010 + 5 + 200)));
        // a round trip of 409 ms is more precise by now
        clock.record(look(ms(1_000_601)), look(ms(1_001_010)), ms(1_000_700));
        assert!(clock.offset() < 0);
    }

    #[test]
    fn a_step_of_this_clock_is_followed_with_the_next_reply() {
        const HOUR: i64 = 3_600_000;
        for step in [-HOUR, HOUR] {
            let clock = StoreClock::default();
            let base = u64::try_from(2 * HOUR).expect("later");
            assert!(!clock.record(look(ms(base)), look(ms(base + 2)), ms(base + 501)));
            let (sent, received) = (stepped(base + 30, step), stepped(base + 32, step));
            assert!(clock.record(sent, received, ms(base + 531)));
            assert_eq!(clock.at(stepped(base + 40, step).now).now, ms(base + 540));
        }
        // during the call
        let clock = StoreClock::default();
        clock.record(look(ms(5_000)), look(ms(5_002)), ms(5_001));
        assert!(clock.record(look(ms(6_000)), stepped(6_002, 9_000), ms(6_001)));
        assert_eq!(clock.at(stepped(7_000, 9_000).now).now, ms(7_000));
    }

    #[test]
    fn a_step_of_the_stores_clock_is_told_once_and_followed() {
        let clock = StoreClock::default();
        clock.record(look(ms(9_000)), look(ms(9_002)), ms(9_001));
        assert!(clock.record(look(ms(9_100)), look(ms(9_102)), ms(4_101)));
        assert_eq!(clock.at(ms(9_200)).now, ms(4_200));
        assert!(!clock.record(look(ms(9_300)), look(ms(9_302)), ms(4_301)));
        // less than a second is no step, but followed all the same
        assert!(!clock.record(look(ms(9_400)), look(ms(9_402)), ms(5_301)));
        assert_eq!(clock.offset(), -4_100_000_000);
    }
}
