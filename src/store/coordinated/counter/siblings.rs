//! Siblings: counters of the same entries whose limits have other tiers, some of which are the same. A reload changes the tiers
//! of a rule, or a request has a limit of its own.
//!
//! Each tier of the entries has one count, so the estimates of siblings agree about the tiers that they have in common: what
//! happens to one of them is copied to the others. Each reports its own hits, and the store's reply to one of them may lack hits
//! of the others.

use std::sync::Arc;

use super::{
    FetchCommands, LocalCounter,
    records::{HeldLeases, PendingDelta},
    tiers::flows,
};
use crate::{
    limit::{Algorithm, Tier, Timestamp, algorithm::CounterState},
    store::remote::{Command, Op, Report, Target},
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

/// What a counter knows about its tiers.
#[derive(Debug)]
pub(in super::super) struct SiblingStates {
    states: Vec<(Tier, CounterState)>,
    /// The version of the store's sliding windows and buckets that the states are based on, if it is known.
    version: Option<u64>,
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

    /// Returns whether the store has to be sent something before it decides about a sibling: hits, or which of the hits that it has
    /// granted were used. If the sibling `is_of_rule`, a reload has put its rule in the place of this counter's, whose leases are
    /// returned.
    pub(in super::super) fn must_settle(&mut self, is_of_rule: bool, now: Timestamp) -> bool {
        if is_of_rule && self.rule.is_some() {
            self.return_leases();
        }
        self.has_unacknowledged()
            || self.fetch.as_ref().is_some_and(|fetch| fetch.is_running || fetch.counted_until > now)
    }

    /// Returns whether the limit is that of a rule.
    pub(in super::super) const fn is_of_rule(&self) -> bool {
        self.rule.is_some()
    }

    /// Returns whether the store's state has to be read before a lease is requested, so that the estimate stays exact: a reload has put
    /// a sliding window or a bucket beside the tiers that siblings know.
    pub(in super::super) fn must_read_first(&self) -> bool {
        self.may_have_siblings()
            && self.version == 0
            && self.last_reply_at.get().is_none()
            && self.in_flight.is_empty()
            && flows(&self.target.tiers)
    }

    /// Returns the commands that read the store's state, and report what is pending.
    pub(in super::super) fn reading_commands(&mut self, now: Timestamp) -> FetchCommands {
        self.wants_read = true;
        let mut commands = Vec::new();
        let dropped = self.take_commands(now, &mut commands);
        FetchCommands { reports: commands.len(), commands, want: 0, dropped }
    }

    /// Returns the commands after which the store counts as this counter does.
    pub(in super::super) fn settling_commands(&mut self, now: Timestamp) -> FetchCommands {
        let mut commands = Vec::new();
        let dropped = self.take_commands(now, &mut commands);
        if commands.is_empty()
            && self.in_flight.is_empty()
            && let Some(replaces) = self.replacement(now)
        {
            let report = Report { at: now, replaces: Some(replaces), ..Report::default() };
            commands.push(Command { target: Arc::clone(&self.target), at: now, op: Op::Add { report } });
        }
        self.fetch_mut().round += u64::from(!commands.is_empty());
        FetchCommands { reports: commands.len(), commands, want: 0, dropped }
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
        for (tier, state) in self.target.tiers.iter().zip(&mut self.estimate) {
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
                .zip(&self.estimate)
                .all(|(tier, state)| is_shared(tier) || state.idle_at() <= now)
    }
}
