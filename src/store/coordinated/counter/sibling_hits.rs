//! What the siblings of a local counter have counted.

use std::sync::Arc;

use super::records::{HeldLeases, PendingDelta};
use crate::{
    limit::{Tier, Timestamp, algorithm::CounterState},
    store::remote::Target,
};

/// What a sibling has counted that the store may not know, and what it may still use of what the store counts.
#[derive(Debug)]
pub(in super::super) struct SiblingHits {
    pub(super) target: Arc<Target>,
    pub(super) pending: Vec<PendingDelta>,
    /// Whether others are in flight, which the store may or may not have counted.
    pub(super) is_in_flight: bool,
    /// Whether it requests a lease.
    pub(super) is_leasing: bool,
    pub(super) leases: HeldLeases,
    /// The instant until which the store may count hits that it has granted at other times than those of their use.
    pub(super) counted_until: Timestamp,
}

/// What a counter knows about its siblings.
#[derive(Debug, Default)]
pub(in super::super) struct Siblings {
    /// What they have counted, as of the current access.
    pub(super) hits: Vec<SiblingHits>,
    /// Whether the tiers may have different versions in the store, since a command has changed only some of them.
    pub(super) has_mixed_versions: bool,
}

// === impl SiblingHits ===

impl SiblingHits {
    fn counts(&self, tier: &Tier) -> bool {
        counts(&self.target, tier)
    }

    /// Returns whether `tier` may have hits of the sibling that the store may or may not have counted.
    pub(super) fn is_uncertain(&self, tier: &Tier) -> bool {
        self.is_in_flight && self.counts(tier)
    }

    /// Returns whether the store's counts differ from the estimate.
    pub(super) fn is_settled(&self, now: Timestamp) -> bool {
        self.pending.is_empty()
            && !self.is_in_flight
            && !self.is_leasing
            && self.leases.is_empty()
            && self.counted_until <= now
    }

    /// Adds what the store does not know to `state`, its state of `tier`, and takes away what only the sibling may use.
    pub(super) fn apply(&self, tier: &Tier, state: &mut CounterState, now: Timestamp) {
        if self.counts(tier) {
            self.pending.iter().for_each(|delta| delta.apply(tier, state, now));
            self.leases.iter().for_each(|lease| lease.exclude(tier, state, now));
        }
    }
}

/// Returns whether a counter of `target` counts in the counter of `tier` too.
pub(super) fn counts(target: &Target, tier: &Tier) -> bool {
    target.tiers.iter().any(|other| other.shares_counter(tier))
}
