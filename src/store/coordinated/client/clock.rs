//! An estimate of the shared store's clock. All instances align windows to that clock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{
    clock::{Reading, STEP},
    limit::{Period, Timestamp},
    store::coordinated::link::StoreTime,
};

/// The assumed drift between two clocks, in parts per million.
const DRIFT: u64 = 200;

/// The offset of the store's clock, by the best measurement. Decisions read it without a lock: one that reads the offset
/// of a measurement and the error of the next is wrong by half a round trip at most.
#[derive(Debug, Default)]
pub(in super::super) struct StoreClock {
    offset: AtomicI64,
    error: AtomicU64,
    /// Zero before the first measurement.
    at: AtomicU64,
    /// The last instant that the store's clock showed in a reply.
    heard: AtomicU64,
    /// The latest instant that it ever showed. Later than `heard` if it was set back.
    latest: AtomicU64,
    /// Locked to write. The last look at this instance's clock.
    writer: Mutex<Option<Reading>>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
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
    /// wins, until drift has made it less precise. Returns by how many nanoseconds the store's clock was set.
    pub(super) fn record(&self, sent: Reading, received: Reading, store_time: Timestamp) -> Option<i64> {
        let mut last = self.writer.lock();
        if !self.follow_steps(&mut last, received) {
            return None;
        }
        let round_trip = received.uptime.as_nanos().saturating_sub(sent.uptime.as_nanos());
        let middle = received.now.as_nanos().saturating_sub(round_trip.div_ceil(2));
        let sample = Sample {
            offset: store_time.as_nanos().cast_signed().wrapping_sub(middle.cast_signed()),
            error: round_trip / 2,
            at: received.now,
        };
        let best = self.best();
        let contradicted = best.filter(|best| best.contradicts(&sample, received.now));
        if best.is_none_or(|best| sample.error <= best.error_at(received.now)) || contradicted.is_some() {
            self.publish(sample);
        }
        let step = contradicted.map(|best| sample.offset.saturating_sub(best.offset));
        let step = step.filter(|step| step.unsigned_abs() >= STEP.as_nanos());
        let (heard, before) = (store_time.as_nanos(), self.heard.load(Ordering::Relaxed));
        self.heard.store(if step.is_some() { heard } else { heard.max(before) }, Ordering::Relaxed);
        self.latest.fetch_max(heard, Ordering::Relaxed);
        step
    }

    /// Follows steps of this instance's clock, which the store's does not make.
    pub(in super::super) fn follow(&self, reading: Reading) {
        self.follow_steps(&mut self.writer.lock(), reading);
    }

    /// Returns whether `reading` is from after the last step of the clock.
    fn follow_steps(&self, last: &mut Option<Reading>, reading: Reading) -> bool {
        let step = last.and_then(|last| reading.step_since(&last));
        if last.is_some_and(|last| reading.uptime < last.uptime) {
            return step.is_none();
        }
        *last = Some(reading);
        if let (Some(step), Some(best)) = (step, self.best()) {
            let at = Timestamp::from_nanos(best.at.as_nanos().saturating_add_signed(step));
            self.publish(Sample { offset: best.offset.wrapping_sub(step), at, ..best });
        }
        true
    }

    /// The writer must be locked.
    fn publish(&self, sample: Sample) {
        self.offset.store(sample.offset, Ordering::Relaxed);
        self.error.store(sample.error, Ordering::Relaxed);
        self.at.store(sample.at.as_nanos(), Ordering::Release);
    }

    fn best(&self) -> Option<Sample> {
        let at = Timestamp::from_nanos(self.at.load(Ordering::Acquire));
        let (offset, error) = (self.offset(), self.error.load(Ordering::Relaxed));
        (at > Timestamp::default()).then_some(Sample { offset, error, at })
    }

    /// Until the first measurement the clocks are assumed to be equal.
    pub(super) fn at(&self, now: Timestamp) -> StoreTime {
        self.best().map_or(StoreTime { now, latest: now }, |sample| {
            let there = Timestamp::from_nanos(now.as_nanos().saturating_add_signed(sample.offset));
            let heard = Timestamp::from_nanos(self.heard.load(Ordering::Relaxed));
            // this instance's clock was set back just now
            let there = if heard.since(there) >= STEP { heard } else { there };
            StoreTime { now: there, latest: there.after(Period::from_nanos(sample.error_at(now))) }
        })
    }

    /// How long after `at` the store's clock shows its latest instant again: zero unless it was set back.
    pub(super) fn behind(&self, at: Timestamp) -> Period {
        let behind = Timestamp::from_nanos(self.latest.load(Ordering::Relaxed)).since(at);
        if behind >= STEP { behind } else { Period::default() }
    }

    /// In nanoseconds; negative if the store's clock is behind, zero before the first measurement.
    pub(in super::super) fn offset(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }
}

impl Sample {
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

    /// The store's time goes on as before, from the first decision on.
    #[test]
    fn a_step_of_this_clock_is_none_of_the_store() {
        const HOUR: i64 = 3_600_000;
        for step in [-HOUR, HOUR] {
            let clock = StoreClock::default();
            let base = u64::try_from(2 * HOUR).expect("later");
            assert_eq!(clock.record(look(ms(base)), look(ms(base + 2)), ms(base + 501)), None);
            let at = |millis| clock.at(stepped(millis, step).now).now;
            if step < 0 {
                // before anybody has noticed
                assert_eq!(at(base + 10), ms(base + 501));
            }
            clock.follow(stepped(base + 20, step));
            assert_eq!(at(base + 30), ms(base + 530));
            let (sent, received) = (stepped(base + 30, step), stepped(base + 32, step));
            assert_eq!(clock.record(sent, received, ms(base + 531)), None);
            assert_eq!(at(base + 40), ms(base + 540));
            assert_eq!(clock.behind(ms(base + 540)), Period::default());
        }
        // the reply comes first
        let clock = StoreClock::default();
        clock.record(look(ms(5_000)), look(ms(5_002)), ms(5_001));
        assert_eq!(clock.record(look(ms(6_000)), stepped(6_002, 9_000), ms(6_001)), None);
        assert_eq!(clock.at(stepped(7_000, 9_000).now).now, ms(7_000));
    }

    #[test]
    fn a_step_of_the_stores_clock_is_told_once_and_followed() {
        let clock = StoreClock::default();
        clock.record(look(ms(9_000)), look(ms(9_002)), ms(9_001));
        assert_eq!(clock.record(look(ms(9_100)), look(ms(9_102)), ms(4_101)), Some(-5_000_000_000));
        assert_eq!(
            (clock.at(ms(9_200)).now, clock.behind(ms(4_200))),
            (ms(4_200), Period::from_millis(4_801))
        );
        assert_eq!(clock.record(look(ms(9_300)), look(ms(9_302)), ms(4_301)), None);
        // less than a second is no step, but followed all the same
        assert_eq!(clock.record(look(ms(9_400)), look(ms(9_402)), ms(5_301)), None);
        assert_eq!(clock.offset(), -4_100_000_000);
    }
}
