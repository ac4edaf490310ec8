//! The way to the store: what it is like at an instant, on the store's clock.

use crate::limit::{Period, Timestamp};

/// The shortest time that a lease should last, unless [`ROUND_TRIPS`] take longer.
const HORIZON: Period = Period::from_millis(50);

const ROUND_TRIPS: u64 = 8;

/// How late the queue may be.
const LATE: Period = Period::from_millis(6);

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
    /// What this process has in common among the [writers](crate::store::remote::Exchange::writer) of counters.
    pub(super) writer: u64,
    pub(super) round_trip: Period,
    pub(super) budget: Period,
    pub(super) local_cache: bool,
}

/// How long before its end a lease has to be returned: two round trips, and how late the queue may be.
pub(super) fn lead(round_trip: Period) -> Period {
    round_trip * 2 + LATE
}

// === impl Link ===

impl Link {
    /// Returns the writer's number of the counter with this `generation`, modulo 2^48: as several instances, two counters
    /// do not know what the other one has changed.
    pub(super) fn writer_of(&self, generation: u32) -> u64 {
        (self.writer.wrapping_add(u64::from(generation) << 16) % (1 << 48)).max(1)
    }

    pub(super) fn horizon(&self) -> Period {
        HORIZON.max(self.round_trip * ROUND_TRIPS)
    }

    pub(super) fn lead(&self) -> Period {
        lead(self.round_trip)
    }

    /// So far away that no decision should wait for two replies.
    pub(super) fn is_far(&self) -> bool {
        self.round_trip * 3 > self.budget
    }
}
