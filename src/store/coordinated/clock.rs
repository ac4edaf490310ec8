//! The shared store's clock, as far as this instance can tell it: windows are cut by one clock.

use parking_lot::Mutex;

use crate::limit::{Period, Timestamp};

/// How far two clocks are taken to drift apart, in parts per million.
const DRIFT: u64 = 200;

/// The age at which a measurement is made for its own sake, where no call brings one along.
const STALE: Period = Period::from_secs(10);

/// The difference between the store's clock and this instance's.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    best: Mutex<Option<Sample>>,
}

/// A measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The store's clock less ours, in nanoseconds.
    offset: i64,
    /// It may be as much more or less than that: half of the round trip.
    error: u64,
    /// When, on our clock.
    at: Timestamp,
}

/// An instant on the store's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreTime {
    /// The best guess: windows are counted by it.
    pub(super) now: Timestamp,
    /// The latest that it can be: what is granted for a window is used no later than its end by this.
    pub(super) latest: Timestamp,
}

impl StoreClock {
    /// Notes that the store's clock showed `told` at some time between `sent` and `received` on ours. Of several
    /// measurements the one with the shortest round trip is believed, until drift has made it worth less than a new one.
    pub(super) fn measured(&self, sent: Timestamp, received: Timestamp, told: Timestamp) {
        let round_trip = received.since(sent).as_nanos();
        let middle = sent.as_nanos() + round_trip / 2;
        let sample = Sample {
            offset: told.as_nanos().cast_signed().wrapping_sub(middle.cast_signed()),
            error: round_trip / 2,
            at: received,
        };
        let mut best = self.best.lock();
        if best
            .is_none_or(|best| sample.error <= best.error_at(received) || best.contradicts(&sample, received))
        {
            *best = Some(sample);
        }
    }

    /// The store's time when our clock shows `now`; our own until the store was heard of.
    pub(super) fn at(&self, now: Timestamp) -> StoreTime {
        let Some(sample) = *self.best.lock() else {
            return StoreTime { now, latest: now };
        };
        let now_there = Timestamp::from_nanos(now.as_nanos().saturating_add_signed(sample.offset));
        StoreTime { now: now_there, latest: now_there.after(Period::from_nanos(sample.error_at(now))) }
    }

    /// Whether it should be measured, for it never was or not for long.
    pub(super) fn is_stale(&self, now: Timestamp) -> bool {
        self.best.lock().is_none_or(|best| now.since(best.at) > STALE)
    }

    /// How far the store's clock is ahead of ours, in nanoseconds; negative if it is behind. Zero before it was heard of.
    pub(super) fn offset(&self) -> i64 {
        self.best.lock().map_or(0, |sample| sample.offset)
    }
}

impl Sample {
    /// What its error has become by `now`.
    fn error_at(&self, now: Timestamp) -> u64 {
        let age = now.since(self.at).as_nanos();
        self.error.saturating_add(age / 1_000_000 * DRIFT)
    }

    /// Whether both cannot be true: then a clock was set, and the newer one counts.
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

    #[test]
    fn the_shortest_round_trip_is_believed() {
        let clock = StoreClock::default();
        assert_eq!(clock.at(ms(5)).now, ms(5));
        clock.measured(ms(1_000), ms(1_010), ms(1_505));
        assert_eq!((clock.at(ms(2_000)).now, clock.offset()), (ms(2_500), 500_000_000));
        // a slow answer says less
        clock.measured(ms(1_020), ms(1_100), ms(1_530));
        assert_eq!(clock.at(ms(2_000)).now, ms(2_500));
        clock.measured(ms(1_200), ms(1_202), ms(1_702));
        assert_eq!(clock.at(ms(2_000)).now, ms(2_501));
    }

    #[test]
    fn the_latest_possible_time_is_never_too_early() {
        let clock = StoreClock::default();
        // the true offset may be anywhere from 490 to 500 ms
        clock.measured(ms(1_000), ms(1_010), ms(1_500));
        let then = clock.at(ms(1_010));
        assert!(then.latest >= ms(1_510) && then.latest <= ms(1_511), "{then:?}");
    }

    #[test]
    fn a_clock_that_was_set_is_noticed() {
        let clock = StoreClock::default();
        clock.measured(ms(1_000), ms(1_001), ms(1_000));
        clock.measured(ms(2_000), ms(2_050), ms(9_000));
        assert_eq!(clock.at(ms(2_050)).now, ms(9_025));
    }
}
