//! An estimate of the shared store's clock. All instances align windows to that clock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use crate::{
    limit::{Period, Timestamp},
    store::coordinated::link::StoreTime,
};

/// The assumed drift between two clocks, in parts per million.
const DRIFT: u64 = 200;

/// The offset between the store's clock and this instance's. Every decision reads it, so that readers write nothing:
/// they read again if a measurement was recorded meanwhile (a sequence lock: Boehm, "Can Seqlocks Get Along With
/// Programming Language Memory Models?", 2012).
#[derive(Debug, Default)]
pub(in super::super) struct StoreClock {
    /// Odd while a measurement is written; zero before the first one.
    turn: AtomicU64,
    offset: AtomicI64,
    error: AtomicU64,
    at: AtomicU64,
    /// Held to write.
    writer: Mutex<()>,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The store's clock minus this instance's, in nanoseconds.
    offset: i64,
    /// The most that `offset` can be wrong by, either way, in nanoseconds: half of the round trip.
    error: u64,
    /// The instant of the measurement, on this instance's clock.
    at: Timestamp,
}

// === impl StoreClock ===

impl StoreClock {
    /// Records that the store's clock showed `store_time` at some instant between `sent` and `received` on this
    /// instance's. The measurement with the shortest round trip wins, until drift has made it less precise than a new
    /// one.
    pub(super) fn record(&self, sent: Timestamp, received: Timestamp, store_time: Timestamp) {
        let round_trip = received.since(sent).as_nanos();
        let middle = sent.as_nanos() + round_trip / 2;
        let sample = Sample {
            offset: store_time.as_nanos().cast_signed().wrapping_sub(middle.cast_signed()),
            error: round_trip / 2,
            at: received,
        };
        let _writer = self.writer.lock();
        let is_better =
            |best: Sample| sample.error <= best.error_at(received) || best.contradicts(&sample, received);
        if self.best().is_none_or(is_better) {
            let turn = self.turn.load(Ordering::Relaxed);
            self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
            fence(Ordering::Release);
            self.offset.store(sample.offset, Ordering::Relaxed);
            self.error.store(sample.error, Ordering::Relaxed);
            self.at.store(sample.at.as_nanos(), Ordering::Relaxed);
            self.turn.store(turn.wrapping_add(2), Ordering::Release);
        }
    }

    /// Returns the best measurement, if there is one.
    fn best(&self) -> Option<Sample> {
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            if turn == 0 {
                return None;
            }
            let sample = Sample {
                offset: self.offset.load(Ordering::Relaxed),
                error: self.error.load(Ordering::Relaxed),
                at: Timestamp::from_nanos(self.at.load(Ordering::Relaxed)),
            };
            fence(Ordering::Acquire);
            if turn.is_multiple_of(2) && self.turn.load(Ordering::Relaxed) == turn {
                return Some(sample);
            }
            std::hint::spin_loop();
        }
    }

    /// Converts `now` on this instance's clock to the store's. Until the first measurement they are assumed to be
    /// equal.
    pub(super) fn at(&self, now: Timestamp) -> StoreTime {
        self.best().map_or(StoreTime { now, latest: now }, |sample| {
            let there = Timestamp::from_nanos(now.as_nanos().saturating_add_signed(sample.offset));
            StoreTime { now: there, latest: there.after(Period::from_nanos(sample.error_at(now))) }
        })
    }

    /// Returns how far the store's clock is ahead of this instance's, in nanoseconds; negative if it is behind, zero
    /// before the first measurement.
    pub(in super::super) fn offset(&self) -> i64 {
        self.best().map_or(0, |best| best.offset)
    }
}

impl Sample {
    /// Returns the error at `now`, drift included.
    fn error_at(&self, now: Timestamp) -> u64 {
        let age = now.since(self.at).as_nanos();
        self.error.saturating_add(age / 1_000_000 * DRIFT)
    }

    /// Returns whether both measurements cannot be correct. Then a clock was set, and the newer one is used.
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
    fn the_measurement_with_the_shortest_round_trip_is_used() {
        let clock = StoreClock::default();
        assert_eq!(clock.at(ms(5)).now, ms(5));
        clock.record(ms(1_000), ms(1_010), ms(1_505));
        assert_eq!((clock.at(ms(2_000)).now, clock.offset()), (ms(2_500), 500_000_000));
        // a slow reply is less precise
        clock.record(ms(1_020), ms(1_100), ms(1_530));
        assert_eq!(clock.at(ms(2_000)).now, ms(2_500));
        clock.record(ms(1_200), ms(1_202), ms(1_702));
        assert_eq!(clock.at(ms(2_000)).now, ms(2_501));
    }

    /// The three numbers of a measurement belong together: here the offset is twice the error.
    #[test]
    fn a_measurement_is_read_as_it_was_written() {
        let clock = StoreClock::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..20_000_u64 {
                    // each contradicts the one before
                    let at = ms(1_000 * i);
                    clock.record(
                        at,
                        at.after(Period::from_nanos(2 * i)),
                        at.after(Period::from_nanos(i + 2_000_000 * i)),
                    );
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 2_000_000 * 19_999 {
                        let Some(Sample { offset, error, at }) = clock.best() else { continue };
                        assert_eq!(offset.unsigned_abs(), 2_000_000 * error);
                        assert_eq!(at, ms(1_000 * error).after(Period::from_nanos(2 * error)));
                        last = offset;
                    }
                });
            }
        });
    }

    #[test]
    fn the_latest_possible_time_is_never_too_early() {
        let clock = StoreClock::default();
        // the true offset may be anywhere from 490 to 500 ms
        clock.record(ms(1_000), ms(1_010), ms(1_500));
        let then = clock.at(ms(1_010));
        assert!(then.latest >= ms(1_510) && then.latest <= ms(1_511), "{then:?}");
    }

    #[test]
    fn a_newer_measurement_replaces_a_contradicting_one() {
        let clock = StoreClock::default();
        clock.record(ms(1_000), ms(1_001), ms(1_000));
        clock.record(ms(2_000), ms(2_050), ms(9_000));
        assert_eq!(clock.at(ms(2_050)).now, ms(9_025));
    }

    #[test]
    fn a_less_precise_measurement_that_can_be_correct_replaces_none() {
        let with_offset = |offset: u64| {
            let clock = StoreClock::default();
            clock.record(ms(1_000), ms(1_001), Timestamp::from_nanos(1_000_500_000));
            // the middle of a round trip of 50 ms, and the offset
            clock.record(ms(1_001), ms(1_051), Timestamp::from_nanos(1_026_000_000 + offset));
            clock.offset()
        };
        // half of each round trip, and a drift of 10 us in the 50 ms between the replies
        let largest = 500_000 + 25_000_000 + 10_000;
        assert_eq!((with_offset(largest), with_offset(largest + 1)), (0, largest.cast_signed() + 1));
    }

    #[test]
    fn a_measurement_becomes_less_precise_by_200_microseconds_in_a_second() {
        let clock = StoreClock::default();
        clock.record(ms(1_000), ms(1_010), ms(1_005));
        let then = clock.at(ms(1_001_010));
        assert_eq!((then.now, then.latest), (ms(1_001_010), ms(1_001_010 + 5 + 200)));
        // a round trip of 409 ms is more precise by now
        clock.record(ms(1_000_601), ms(1_001_010), ms(1_000_700));
        assert!(clock.offset() < 0);
    }
}
