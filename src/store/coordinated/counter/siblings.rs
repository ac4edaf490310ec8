//! Siblings: counters of the same entries whose limits have other tiers, some of which are the same. A reload changes the tiers
//! of a rule, or a request has a limit of its own.
//!
//! Each tier of the entries has one count, so the estimates of siblings agree about the tiers that they have in common: what
//! happens to one of them is copied to the others. Each reports its own hits, and the store's reply to one of them may lack hits
//! of the others.

use std::sync::Arc;

use super::{
    LocalCounter,
    sibling_hits::{SiblingHits, Siblings, counts},
    tiers::{flows, has_strict_bucket},
};
use crate::{
    limit::{Algorithm, Coordination, Direction, Hits, Tier, Timestamp, algorithm::CounterState},
    store::remote::Target,
};

/// What a counter knows about its tiers.
#[derive(Debug)]
pub(in super::super) struct SiblingStates {
    states: Vec<(Tier, CounterState)>,
    /// The version of the store's sliding windows and buckets that the states are based on, if it is known.
    version: Option<u64>,
}

// === impl LocalCounter ===

impl LocalCounter {
    /// Returns whether a counter of `target` has some of its tiers in common.
    pub(in super::super) fn is_sibling_of(&self, target: &Target) -> bool {
        self.target.path == target.path
            && self.target.over_limit_policy == target.over_limit_policy
            && self.target.tiers.iter().any(|tier| counts(target, tier))
    }

    /// Returns what it knows about its siblings; none if it has none.
    fn siblings(&self) -> Option<&Siblings> {
        self.rare.more().and_then(|more| more.siblings.as_deref())
    }

    fn siblings_mut(&mut self) -> Option<&mut Siblings> {
        self.rare.more_mut().and_then(|more| more.siblings.as_deref_mut())
    }

    /// Returns whether it may have siblings.
    pub(in super::super) fn may_have_siblings(&self) -> bool {
        self.siblings().is_some()
    }

    /// Returns whether hits of siblings may be missing in the store.
    pub(super) fn has_unsettled_siblings(&self, now: Timestamp) -> bool {
        self.siblings().is_some_and(|siblings| siblings.hits.iter().any(|sibling| !sibling.is_settled(now)))
    }

    /// Notes that it has siblings.
    pub(in super::super) fn expect_siblings(&mut self) -> &mut Siblings {
        self.rare.make_more().siblings.get_or_insert_default()
    }

    /// Forgets what its siblings have counted, which the next access finds out again.
    pub(in super::super) fn clear_siblings(&mut self) {
        if let Some(siblings) = self.siblings_mut() {
            siblings.hits.clear();
        }
    }

    /// Notes what its siblings have counted. Without siblings it becomes an ordinary counter, as soon as a report may replace the
    /// store's state with its estimate.
    pub(in super::super) fn set_siblings(&mut self, hits: Vec<SiblingHits>) {
        let may_be_alone = !flows(&self.target.tiers);
        let siblings = self.expect_siblings();
        siblings.hits = hits;
        if siblings.hits.is_empty() && (may_be_alone || !siblings.has_mixed_versions) {
            self.rare.make_more().siblings = None;
            self.rare.shrink();
        }
    }

    /// Returns whether the store has to decide about `hits`, after all that its siblings have counted: each counter reports its own
    /// hits, so that their order would be lost. Once the store has decided about hits that it counts, a report may replace its state
    /// again, and a lease is likely to be used: counters that have hits in turn would only return each other's.
    pub(in super::super) fn must_decide_in_order(
        &self,
        direction: Direction,
        hits: Hits,
        now: Timestamp,
    ) -> bool {
        let Some(siblings) = self.siblings() else { return false };
        let tiers = &self.target.tiers;
        let counts = || {
            direction == Direction::GiveBack
                || has_strict_bucket(tiers)
                || hits > Hits(0) && self.fits(hits, now)
        };
        let order_matters = || flows(tiers) || self.mode == Coordination::Lease;
        self.mode != Coordination::Local
            && (self.has_unsettled_siblings(now)
                || siblings.has_mixed_versions && order_matters() && counts())
    }

    /// Notes that a command has changed all of its tiers.
    pub(in super::super) fn note_change(&mut self) {
        if let Some(siblings) = self.siblings_mut() {
            siblings.has_mixed_versions = false;
        }
    }

    /// Notes that a command of a sibling may have changed some of its tiers.
    pub(in super::super) fn note_change_of_sibling(&mut self) {
        self.expect_siblings().has_mixed_versions = true;
    }

    /// Returns whether the store may not know what it has counted.
    pub(in super::super) fn is_unsettled(&self, now: Timestamp) -> bool {
        self.has_unacknowledged() || self.has_ledger_on_way() || self.counted_until() > now
    }

    /// Returns the instant until which the store may count hits that it has granted at other times than those of their use. In a fixed
    /// window the time does not matter.
    pub(super) fn counted_until(&self) -> Timestamp {
        if flows(&self.target.tiers) { self.granted_until.instant() } else { Timestamp::default() }
    }

    /// Returns what its siblings have to know.
    pub(in super::super) fn sibling_hits(&self) -> SiblingHits {
        SiblingHits {
            target: Arc::clone(&self.target),
            pending: self.unacknowledged.pending().to_vec(),
            is_in_flight: self.unacknowledged.is_in_flight(),
            is_leasing: self.requested_hits() > 0,
            leases: self.leases().iter().copied().collect(),
            counted_until: self.counted_until(),
        }
    }

    /// Returns whether the store has to be sent something before it decides about a sibling: hits, or which of the hits that it has
    /// granted were used. If the sibling `is_of_rule`, a reload has put its rule in the place of this counter's, whose leases are
    /// returned.
    pub(in super::super) fn must_settle(&mut self, is_of_rule: bool, now: Timestamp) -> bool {
        if is_of_rule && self.rule.is_some() {
            self.return_leases();
        }
        self.is_unsettled(now)
    }

    /// Returns whether the limit is that of a rule.
    pub(in super::super) const fn is_of_rule(&self) -> bool {
        self.rule.is_some()
    }

    /// Returns its tiers with their states.
    pub(in super::super) fn states(&self) -> SiblingStates {
        let states = self.target.tiers.iter().cloned().zip(self.estimate.iter().cloned());
        // one that has had no reply yet knows none
        let version = (!self.is_version_lost && self.version > 0).then_some(self.version);
        SiblingStates { states: states.collect(), version }
    }

    /// Adopts the states of the tiers that it has in common with `sibling`, and the version of the store's states if the sibling knows
    /// all of them.
    pub(in super::super) fn adopt_states(&mut self, sibling: &SiblingStates) {
        let mut is_known = true;
        for (tier, state) in self.target.tiers.iter().zip(self.estimate.iter_mut()) {
            match sibling.states.iter().find(|(other, _)| other.shares_counter(tier)) {
                Some((_, shared)) => state.clone_from(shared),
                None => is_known &= tier.algorithm == Algorithm::FixedWindow,
            }
        }
        if let Some(version) = sibling.version
            && is_known
        {
            (self.version, self.is_version_lost) = (version, false);
        }
    }

    /// Returns whether it can be removed without a loss, because the store has all of its hits, and what it knows is in a sibling
    /// `sibling` too.
    pub(in super::super) fn is_spare(&self, sibling: &SiblingStates, now: Timestamp) -> bool {
        let is_shared = |tier: &Tier| sibling.states.iter().any(|(other, _)| other.shares_counter(tier));
        self.is_free(now)
            && self
                .target
                .tiers
                .iter()
                .zip(self.estimate.iter())
                .all(|(tier, state)| is_shared(tier) || state.idle_at() <= now)
    }
}
