//! Siblings: counters of the same entries whose limits have other tiers, some of which are the same. A reload changes the tiers
//! of a rule, or a request has a limit of its own.
//!
//! Each tier of the entries has one count, so the estimates of siblings agree about the tiers that they have in common: what
//! happens to one of them is copied to the others. Each reports its own hits, and the store's reply to one of them may lack hits
//! of the others.

use std::sync::Arc;

use super::{
    LocalCounter,
    records::{HeldLeases, PendingDelta},
};
use crate::{
    limit::{Tier, Timestamp, algorithm::CounterState},
    store::remote::Target,
};

/// What a sibling has counted that the store may not know, and what it may still use of what the store counts.
#[derive(Debug)]
pub(in super::super) struct SiblingHits {
    target: Arc<Target>,
    pending: Vec<PendingDelta>,
    /// Whether others are in flight, which the store may or may not have counted.
    is_in_flight: bool,
    leases: HeldLeases,
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
    fn is_settled(&self) -> bool {
        self.pending.is_empty() && !self.is_in_flight && self.leases.is_empty()
    }

    /// Adds what the store does not know to `state`, its state of `tier`, and takes away what only the sibling may use.
    pub(super) fn apply(&self, tier: &Tier, state: &mut CounterState, now: Timestamp) {
        if self.counts(tier) {
            self.pending.iter().for_each(|delta| delta.apply(tier, state, now));
            self.leases.iter().for_each(|lease| lease.exclude(tier, state, now));
        }
    }
}

fn counts(target: &Target, tier: &Tier) -> bool {
    target.tiers.iter().any(|other| other.shares_counter(tier))
}

// === impl LocalCounter ===

impl LocalCounter {
    /// Returns whether a counter of `target` has some of its tiers in common.
    pub(in super::super) fn is_sibling_of(&self, target: &Target) -> bool {
        self.target.path == target.path
            && self.target.over_limit_policy == target.over_limit_policy
            && self.target.tiers.iter().any(|tier| counts(target, tier))
    }

    /// Returns whether it may have siblings.
    pub(in super::super) const fn may_have_siblings(&self) -> bool {
        self.siblings.is_some()
    }

    /// Returns whether hits of siblings may be missing in the store.
    pub(super) fn has_unsettled_siblings(&self) -> bool {
        self.siblings.iter().flat_map(|all| all.iter()).any(|sibling| !sibling.is_settled())
    }

    /// Notes what its siblings have counted; none, if it has no siblings.
    pub(in super::super) fn set_siblings(&mut self, siblings: Option<Vec<SiblingHits>>) {
        self.siblings = siblings.map(Vec::into_boxed_slice);
    }

    /// Returns what its siblings have to know.
    pub(in super::super) fn sibling_hits(&self) -> SiblingHits {
        SiblingHits {
            target: Arc::clone(&self.target),
            pending: self.pending.iter().copied().collect(),
            is_in_flight: !self.in_flight.is_empty(),
            leases: self.leases().iter().copied().collect(),
        }
    }

    /// Returns its tiers with their states.
    pub(in super::super) fn states(&self) -> Vec<(Tier, CounterState)> {
        self.target.tiers.iter().cloned().zip(self.estimate.iter().cloned()).collect()
    }

    /// Adopts the `states` of the tiers that it has in common with a sibling.
    pub(in super::super) fn adopt_states(&mut self, states: &[(Tier, CounterState)]) {
        for (tier, state) in self.target.tiers.iter().zip(&mut self.estimate) {
            if let Some((_, shared)) = states.iter().find(|(other, _)| other.shares_counter(tier)) {
                state.clone_from(shared);
            }
        }
    }

    /// Returns whether it can be removed without a loss, because the store has all of its hits, and what it knows is in a sibling
    /// with these `states` too.
    pub(in super::super) fn is_spare(&self, states: &[(Tier, CounterState)], now: Timestamp) -> bool {
        let is_shared = |tier: &Tier| states.iter().any(|(other, _)| other.shares_counter(tier));
        self.is_free(now)
            && self
                .target
                .tiers
                .iter()
                .zip(&self.estimate)
                .all(|(tier, state)| is_shared(tier) || state.idle_at() <= now)
    }
}
