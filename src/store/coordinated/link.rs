//! The way to the store: what it is like at an instant, on the store's clock.

use crate::limit::{Period, Timestamp};

/// The shortest time that a lease should last, unless [`ROUND_TRIPS`] take longer.
const HORIZON: Period = Period::from_millis(50);

/// The number of round trips that a lease should last.
const ROUND_TRIPS: u64 = 8;

/// How late the queue may be, in nanoseconds.
const LATE: u64 = 6_000_000;

/// An instant on the store's clock, as this instance estimates it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreTime {
    /// The best estimate. Hits are counted in the window of this instant.
    pub(super) now: Timestamp,
    /// The latest instant that it can be. A lease is not used after its end by this clock.
    pub(super) latest: Timestamp,
}

/// What the way to the store is like now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) time: StoreTime,
    pub(super) instances: usize,
    /// Who this process is among the [writers](crate::store::remote::Exchange::writer) of counters.
    pub(super) writer: u64,
    pub(super) round_trip: Period,
    /// The longest that a decision waits.
    pub(super) budget: Period,
    /// Whether hits that the store has denied until some instant are rejected without a call under `strict`.
    pub(super) local_cache: bool,
}

/// Returns how long before its end a lease has to be returned to arrive in time: two of the `round_trip`, and what the
/// queue may be late.
pub(super) const fn lead(round_trip: Period) -> Period {
    Period::from_nanos(round_trip.as_nanos().saturating_mul(2).saturating_add(LATE))
}

// === impl Link ===

impl Link {
    fn trips(&self, count: u64) -> Period {
        Period::from_nanos(self.round_trip.as_nanos().saturating_mul(count))
    }

    /// Returns the time that a lease should last.
    pub(super) fn horizon(&self) -> Period {
        HORIZON.max(self.trips(ROUND_TRIPS))
    }

    /// Returns how long before its end a lease has to be returned to arrive in time.
    pub(super) const fn lead(&self) -> Period {
        lead(self.round_trip)
    }

    /// Returns whether the store is so far away that no decision should wait for two replies.
    pub(super) fn is_far(&self) -> bool {
        self.trips(3) > self.budget
    }
}
