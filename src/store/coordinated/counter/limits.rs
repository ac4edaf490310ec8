//! The limits of a counter. Entries have one counter, whatever limits their hits are counted under: a reload changes
//! the tiers of a rule, and requests bring limits of their own. Each tier has one count, so what is taken under one
//! limit is missing under all that have the tier.
//!
//! One limit is in use at a time: the rule's, unless a request with another one is decided, or a reply about another
//! one is applied. What is known of the tiers that it does not have is kept aside.

use std::sync::Arc;

use super::{
    LocalCounter,
    heard::{ReplyTime, Version},
    rare::{OtherLimits, OtherTier},
    states::States,
    tiers::{flows, has_bucket},
};
use crate::{
    limit::{Direction, LimitCheck, Tier, Timestamp, algorithm::CounterState},
    store::remote::Target,
};

/// The most tiers of a counter that are kept aside, and the most in one command: callers choose the periods of their
/// limits.
const MAX_TIERS: usize = 16;

/// What another limit replaces while it is in use.
#[derive(Debug)]
pub(in super::super) struct ReplacedLimit {
    target: Arc<Target>,
    denied_until: Timestamp,
    /// The number of the command whose reply was applied last.
    applied: u32,
}

/// Returns the target of the tiers of `limit`, and then those of `beside`.
pub(super) fn joined(limit: &Target, beside: &Target) -> Arc<Target> {
    let tiers: Vec<Tier> = limit.tiers.iter().chain(&*beside.tiers).cloned().collect();
    Arc::new(Target { tiers: tiers.into(), ..limit.clone() })
}

// === impl LocalCounter ===

impl LocalCounter {
    /// Applies the limit that comes with the request of `check`, if it is another one than that of the counter. Returns
    /// the counter's, which has to be restored.
    pub(in super::super) fn apply_own_limit(
        &mut self,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> Option<ReplacedLimit> {
        if check.rule.id().is_some() || self.target.is_of(check) {
            return None;
        }
        let last = self.others().and_then(|others| others.of_request.as_ref());
        let target = match last.filter(|target| target.is_of(check)) {
            Some(target) => Arc::clone(target),
            None => Arc::new(Target { tiers: check.shared_tiers(), ..(*self.target).clone() }),
        };
        if check.direction == Direction::GiveBack && !self.target.has_counters_of(&target) {
            // the hits that are held must stay where they count, and nowhere else
            self.return_leases();
        }
        let replaced = self.replace_limit(Arc::clone(&target), now);
        if let Some(others) = self.others_mut() {
            others.of_request = Some(target);
        }
        Some(replaced)
    }

    /// Has `target`, of the same entries, take the place of the limit in use, which is returned.
    pub(super) fn replace_limit(&mut self, target: Arc<Target>, now: Timestamp) -> ReplacedLimit {
        let replaced = ReplacedLimit {
            target: Arc::clone(&self.target),
            denied_until: std::mem::take(&mut self.plan.denied_until),
            applied: self.heard.applied,
        };
        self.use_limit(target, now);
        replaced
    }

    /// Restores the limit that [`LocalCounter::replace_limit`] has returned.
    pub(in super::super) fn restore_limit(&mut self, replaced: ReplacedLimit, now: Timestamp) {
        self.use_limit(replaced.target, now);
        self.plan.denied_until = replaced.denied_until;
        if self.heard.applied != replaced.applied {
            // the reply was applied as if this was the limit
            self.plan_flush(now);
        }
    }

    /// Runs `act` while `limit` is in use.
    pub(in super::super) fn under<T>(
        &mut self,
        limit: &Arc<Target>,
        now: Timestamp,
        act: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let replaced =
            (!self.target.has_counters_of(limit)).then(|| self.replace_limit(Arc::clone(limit), now));
        let result = act(self);
        if let Some(replaced) = replaced {
            self.restore_limit(replaced, now);
        }
        result
    }

    /// Has `target` be the limit of the rule.
    pub(super) fn change_limit(&mut self, target: Target, now: Timestamp) {
        if has_bucket(&self.target.tiers) || !self.target.has_counters_of(&target) {
            // a bucket that holds less forgets some of the hits, and it would not be known whether leased ones are
            // among them; and in a tier that is new nothing is held
            self.return_leases();
        }
        self.use_limit(Arc::new(target), now);
        if let Some(others) = self.others_mut() {
            others.of_rule = None;
        }
        self.free_others();
    }

    /// Returns whether a limit with other tiers than the rule's is in use.
    pub(in super::super) fn is_away(&self) -> bool {
        self.others().is_some_and(|others| others.of_rule.is_some())
    }

    /// Returns the limit under which leases are held.
    pub(super) fn lease_limit(&self) -> &Arc<Target> {
        self.others().and_then(|others| others.of_rule.as_ref()).unwrap_or(&self.target)
    }

    /// Returns the state of tier `i` of `target`, and its version in the store, if they are known.
    pub(super) fn known(&self, target: &Target, i: usize) -> Option<(&CounterState, Version)> {
        let tier = &target.tiers[i];
        let own = self.target.tiers.iter().position(|own| own.shares_counter(tier));
        if let Some(own) = own {
            return Some((&self.estimate[own], self.version(own)));
        }
        let other = self.others()?.tiers.iter().find(|other| other.tier.shares_counter(tier))?;
        Some((&other.state, other.version))
    }

    /// Returns the version of tier `i` of the limit in use, if it is a sliding window or a bucket.
    pub(super) fn version(&self, i: usize) -> Version {
        let each = self.rare.more().and_then(|more| more.versions.as_deref());
        each.and_then(|versions| versions.get(i).copied()).unwrap_or(self.heard.version)
    }

    /// Returns whether that of a tier of the limit in use is lost.
    pub(super) fn has_lost_version(&self) -> bool {
        (0..self.target.tiers.len()).any(|i| self.version(i) == Version::LOST)
    }

    /// Notes the versions of the tiers of the limit in use. A command that changes all of them gives all the same, so
    /// that few counters have different ones.
    pub(super) fn set_versions(&mut self, versions: impl Fn(usize) -> Version) {
        let tiers = &self.target.tiers;
        let mut flowing = (0..tiers.len()).filter(|i| flows(std::slice::from_ref(&tiers[*i])));
        let first = flowing.next().map_or(Version::NONE, &versions);
        if flowing.all(|i| versions(i) == first) {
            self.heard.version = first;
            if let Some(more) = self.rare.more_mut()
                && more.versions.take().is_some()
            {
                self.rare.shrink();
            }
        } else {
            let each = (0..tiers.len()).map(versions).collect();
            self.rare.make_more().versions = Some(each);
        }
    }

    /// Notes that it is not known what the store counts besides the estimate.
    pub(in super::super) fn lose_versions(&mut self) {
        self.set_versions(|_| Version::LOST);
        if let Some(others) = self.others_mut() {
            others.tiers.iter_mut().for_each(|other| other.version = Version::LOST);
        }
    }

    /// Returns the tiers that a report of what is in flight is about besides those of the limit in use: of other limits
    /// under which hits were counted, and if all are to be read, all that are known.
    pub(super) fn reported_tiers(&self) -> Option<Arc<Target>> {
        let known = self.kept_tiers().filter(|_| self.plan.wants_read);
        self.tiers_beside(self.in_flight_tiers().chain(known))
    }

    /// Returns the tiers that are known besides those of the limit in use.
    pub(super) fn other_tiers(&self) -> Option<Arc<Target>> {
        self.tiers_beside(self.kept_tiers())
    }

    /// Returns whether a command that reports what is in flight and hits under `next` would have too many tiers.
    pub(super) fn has_too_many_tiers(&self, next: &Target) -> bool {
        !next.has_counters_of(&self.target)
            && self
                .tiers_beside(self.in_flight_tiers().chain(&*next.tiers))
                .is_some_and(|beside| beside.tiers.len() > MAX_TIERS)
    }

    fn in_flight_tiers(&self) -> impl Iterator<Item = &Tier> {
        let limits = self.unacknowledged.in_flight().iter().map(|delta| &delta.limit);
        limits.filter(|limit| !limit.has_counters_of(&self.target)).flat_map(|limit| &*limit.tiers)
    }

    fn kept_tiers(&self) -> impl Iterator<Item = &Tier> {
        self.others().into_iter().flat_map(|others| &others.tiers).map(|other| &other.tier)
    }

    /// Returns those of `tiers` that the limit in use does not have, if there are any.
    fn tiers_beside<'a>(&self, tiers: impl Iterator<Item = &'a Tier>) -> Option<Arc<Target>> {
        let mut beside: Vec<Tier> = Vec::new();
        for tier in tiers {
            if !self.target.counts_in(tier) && !beside.iter().any(|own| own.shares_counter(tier)) {
                beside.push(tier.clone());
            }
        }
        let tiers = (!beside.is_empty()).then_some(beside)?;
        Some(Arc::new(Target { tiers: tiers.into(), ..(*self.target).clone() }))
    }

    /// Returns whether no tier that is kept aside counts anything.
    pub(super) fn are_others_idle(&self, now: Timestamp) -> bool {
        self.others().is_none_or(|others| others.tiers.iter().all(|other| other.state.idle_at() <= now))
    }

    /// Forgets the tiers kept aside that count nothing any more.
    pub(super) fn forget_others(&mut self, now: Timestamp) {
        if let Some(others) = self.others_mut() {
            others.tiers.retain(|other| other.state.idle_at() > now);
            self.free_others();
        }
    }

    fn others(&self) -> Option<&OtherLimits> {
        self.rare.more()?.others.as_deref()
    }

    fn others_mut(&mut self) -> Option<&mut OtherLimits> {
        self.rare.more_mut()?.others.as_deref_mut()
    }

    fn free_others(&mut self) {
        if self.others().is_some_and(|others| others.tiers.is_empty() && others.of_rule.is_none())
            && let Some(more) = self.rare.more_mut()
        {
            more.others = None;
            self.rare.shrink();
        }
    }

    /// Uses `target` from now on. What is known of tiers that it does not have is kept aside.
    fn use_limit(&mut self, target: Arc<Target>, now: Timestamp) {
        let before = std::mem::replace(&mut self.target, target);
        if before.has_counters_of(&self.target) {
            return;
        }
        let versions: Vec<Version> = (0..before.tiers.len()).map(|i| self.version(i)).collect();
        let more = self.rare.make_more();
        let others = more.others.get_or_insert_default();
        for (i, tier) in before.tiers.iter().enumerate() {
            others.tiers.push(OtherTier {
                tier: tier.clone(),
                state: self.estimate[i].clone(),
                version: versions[i],
                replied_at: self.heard.last_reply_at,
                fallback: more.fallback.as_ref().map(|states| states[i].clone()),
            });
        }
        let tiers = &self.target.tiers;
        let known = |tier: &Tier| others.tiers.iter().find(|other| other.tier.shares_counter(tier));
        let of_tiers = || tiers.iter().map(|tier| (tier, known(tier)));
        // as old as what is known of any of them
        let replied_at =
            of_tiers().map(|(_, known)| known.map_or(ReplyTime::default(), |known| known.replied_at));
        self.heard.last_reply_at = replied_at.min_by_key(|replied_at| replied_at.get()).unwrap_or_default();
        let versions: Vec<Version> =
            of_tiers().map(|(_, known)| known.map_or(Version::NONE, |known| known.version)).collect();
        let unused = |tier: &Tier| CounterState::unused(tier, now);
        self.estimate = of_tiers()
            .map(|(tier, known)| known.map_or_else(|| unused(tier), |known| known.state.clone()))
            .collect();
        // a state in force for one tier is in force for all
        let is_in_fallback = of_tiers().any(|(_, known)| known.is_some_and(|known| known.fallback.is_some()));
        more.fallback = is_in_fallback.then(|| {
            let states = of_tiers().zip(self.estimate.iter());
            let fallback = states.map(|((_, known), state)| {
                known.and_then(|known| known.fallback.clone()).unwrap_or_else(|| state.clone())
            });
            Box::new(fallback.collect::<States>())
        });
        let is_of_rule = others.of_rule.as_ref().is_some_and(|of_rule| of_rule.has_counters_of(&self.target));
        others.of_rule = if is_of_rule { None } else { others.of_rule.take().or(Some(before)) };
        // the rule's are in use again soon, and those that are to be read are kept too
        let is_of_rule = |tier: &Tier| others.of_rule.as_ref().is_some_and(|limit| limit.counts_in(tier));
        let counts = |other: &OtherTier| self.plan.wants_read || other.state.idle_at() > now;
        others.tiers.retain(|other| {
            !self.target.counts_in(&other.tier) && (is_of_rule(&other.tier) || counts(other))
        });
        while others.tiers.len() > MAX_TIERS {
            let places = others.tiers.iter().enumerate().filter(|(_, other)| !is_of_rule(&other.tier));
            let Some((first, _)) = places.min_by_key(|(_, other)| other.state.idle_at()) else { break };
            others.tiers.swap_remove(first);
        }
        self.set_versions(|i| versions[i]);
        self.free_others();
    }
}
