//! The records that a local counter keeps: pending hits and held leases, and the outcome of each.

use crate::{limit::Timestamp, store::remote::Report};

/// Hits that were counted here and that the store has not counted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingDelta {
    /// When the first of them was counted.
    pub(super) at: Timestamp,
    /// When the last of them was counted.
    pub(super) last_at: Timestamp,
    /// Negative if they are given back.
    pub(super) hits: i64,
    /// The number of them that were counted although they were rejected.
    pub(super) rejected: u64,
    /// The end of the lease, if these are unused hits of one. They are available again only after the store has received them.
    pub(super) lease_end: Option<Timestamp>,
}

/// The outcome of sending pending hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct DeliveryOutcome {
    /// Hits of the last command that the store applied and that were admitted here.
    pub(in super::super) admitted: u64,
    /// Hits that the store may or may not have applied.
    pub(in super::super) unknown: u64,
}

/// Hits that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Dropped {
    /// Hits that were never reported, because their windows had ended.
    pub(in super::super) unreported: u64,
    /// Leased hits that were not used before their lease ended.
    pub(in super::super) stranded: u64,
}

/// Hits that may be admitted without a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLease {
    /// Hits that are left.
    pub(super) left: u64,
    pub(super) granted_at: Timestamp,
    /// The end of the lease.
    pub(super) until: Timestamp,
}

/// Converts hits that are taken to the store's signed count.
pub(in super::super) fn positive(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

/// Converts hits that are given back to the store's signed count.
pub(in super::super) fn negative(hits: u64) -> i64 {
    -positive(hits)
}

// === impl PendingDelta ===

impl PendingDelta {
    /// Returns the report that sends it.
    pub(super) fn report(&self) -> Report {
        match self.lease_end {
            Some(until) => Report::unused(self.at, self.hits.unsigned_abs(), until),
            None => Report::of(self.last_at, self.hits),
        }
    }
}
