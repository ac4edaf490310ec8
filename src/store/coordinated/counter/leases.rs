//! Leases: hits that the store has granted in advance.

use std::sync::Arc;

use super::{
    LocalCounter,
    records::{Dropped, HeldLease, PendingDelta},
    tiers::{flows, has_bucket, has_ended, has_flowed_back, hold, is_mixed, saturated},
    used_up::LONGEST_IDLE_HOLD,
};
use crate::{
    limit::{
        Algorithm, Coordination, Decision, Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp,
        capacity, decide,
    },
    store::coordinated::store_time::StoreTime,
};

/// The number of expected intervals without a hit after which a counter is abandoned. With random arrivals, 1 in 150
/// intervals is that long by chance.
const ABANDONED_AFTER: u64 = 5;

/// The longest time until a counter is abandoned. If hits are rarer than that, a call for each hit costs little.
const LONGEST_ABANDONMENT: Period = Period::from_secs(10);

/// Returns the hits of `leases` that are not used yet.
fn left_in(leases: &[HeldLease]) -> u64 {
    leases.iter().map(|lease| lease.left().0).sum()
}

// === impl LocalCounter ===

impl LocalCounter {
    /// Returns the held leases of the limit in use.
    pub(super) fn leases(&self) -> &[HeldLease] {
        if self.is_away() { &[] } else { self.rare.leases() }
    }

    /// Returns the hits that may be admitted without a call.
    pub(in super::super) fn leased_hits(&self) -> u64 {
        left_in(self.leases())
    }

    /// Returns the hits that this instance, one of several, may keep unused: all together at most one in a hundred.
    /// None where rejected hits count, so that the store's count is soon the number of all hits, and none of a bucket,
    /// which could exceed its burst if it was full again before they are used. An instance that is alone takes them
    /// from nobody.
    pub(super) fn idle_allowance(&self) -> u64 {
        let capacity = capacity(&self.target.tiers);
        match self.plan.instances {
            // a lease ends with its hold, but the hits would count for the rest of the window
            _ if is_mixed(&self.target.tiers) => 0,
            ..=1 => capacity / 8,
            _ if has_bucket(&self.target.tiers) || self.counts_rejected() => 0,
            instances => capacity / 100 / u64::from(instances),
        }
    }

    /// Returns the hits that are requested with those that decisions wait for, to be kept for after a lull.
    pub(super) fn kept_ahead(&self, now: Timestamp) -> u64 {
        if self.plan.instances > 1 && flows(&self.target.tiers) {
            return 0;
        }
        self.idle_allowance().min(self.remaining(now) / 8)
    }

    /// Adapts to the number of instances. Leases that were granted to a lone instance are valid for long, and returned
    /// when there are others.
    pub(in super::super) fn follow_instances(&mut self, instances: usize) {
        if instances > 1 && self.plan.instances <= 1 && flows(&self.lease_limit().tiers) {
            self.return_leases();
        }
        self.plan.instances = u16::try_from(instances).unwrap_or(u16::MAX);
    }

    /// Returns the instant until which the store may count hits that it has granted at other times than those of their
    /// use. In a fixed window the time does not matter.
    pub(super) fn counted_until(&self) -> Timestamp {
        if flows(&self.lease_limit().tiers) {
            self.heard.granted_until.instant()
        } else {
            Timestamp::default()
        }
    }

    /// Removes leases that have ended. Hits that some tier still counts are returned to the store.
    #[inline]
    pub(in super::super) fn expire_leases(&mut self, time: StoreTime) -> Dropped {
        // most counters have none most of the time
        if self.rare.leases().is_empty() { Dropped::default() } else { self.expire_held(time) }
    }

    fn expire_held(&mut self, time: StoreTime) -> Dropped {
        let mut dropped = Dropped::default();
        while let Some(i) = self.leases().iter().position(|lease| lease.until <= time.latest) {
            let lease = self.rare.take_lease(i);
            let tiers = &self.target.tiers;
            let ended = tiers.iter().all(|tier| has_ended(tier, lease.granted_at, lease.until));
            let is_kept = self.must_keep(tiers, lease.granted_at, lease.until, time.latest);
            if is_kept
                && self.plan.instances <= 1
                && !is_mixed(tiers)
                && !self.has_lost_version()
                && lease.left().0 <= self.idle_allowance()
            {
                // the estimate, which does not count them, has to replace the store's state
                self.leasing_mut().is_overcounted = true;
                self.plan.wants_read = true;
            } else if ended || is_kept {
                dropped.stranded += lease.left().0;
            } else {
                self.push_pending(PendingDelta::unused(&self.target, lease));
            }
        }
        dropped
    }

    /// Returns whether hits that were granted at `at` under a limit of `tiers`, to be used until `until`, must no
    /// longer be returned at `now`. The hits of an instance that is alone, whose estimate replaces the state of a
    /// bucket, still have to leave the fixed windows beside it.
    pub(super) fn must_keep(&self, tiers: &[Tier], at: Timestamp, until: Timestamp, now: Timestamp) -> bool {
        has_flowed_back(tiers, at, until, now) && !(self.plan.instances <= 1 && is_mixed(tiers))
    }

    /// Decides about `hits` by the estimate. Leases must cover them if they are admitted; otherwise, none: the store
    /// has to be asked first.
    pub(in super::super) fn decide_leased(
        &mut self,
        instances: usize,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Option<Decision> {
        self.follow_instances(instances);
        if !self.fits(hits, now) {
            let decision = self.count(instances, Direction::Take, policy, hits, now);
            return Some(self.until_pause_ends(decision, now));
        }
        if self.leased_hits() >= hits.0 {
            let decision = decide(&self.target.tiers, &mut self.estimate, policy, Direction::Take, hits, now);
            self.spend(hits.0, now);
            return Some(decision);
        }
        // until there is enough for every instance
        (now < self.plan.denied_until).then(|| self.until_pause_ends(self.rejected(hits, now), now))
    }

    /// Spends leased hits.
    fn spend(&mut self, hits: u64, now: Timestamp) {
        let mut needed = hits;
        let held = self.rare.leases_mut();
        if let Some(first) = held.first_mut()
            && first.left().0 > hits
        {
            first.left -= saturated(hits);
            return;
        }
        for lease in held {
            let spent = needed.min(lease.left().0);
            lease.left -= saturated(spent);
            needed -= spent;
        }
        self.rare.retain_leases(|lease| lease.left > 0);
        self.forget_leasing(now);
    }

    /// Makes all unspent leased hits pending, to return them to the store.
    pub(in super::super) fn return_leases(&mut self) {
        if self.rare.leases().is_empty() {
            return;
        }
        let limit = Arc::clone(self.lease_limit());
        for lease in self.rare.take_leases() {
            self.push_pending(PendingDelta::unused(&limit, lease));
        }
    }

    /// Makes unspent leased hits pending that this instance should not keep: those of a lease that ends before a return
    /// could arrive, `lead` from now, all of them if the counter is not in mode `lease` any more, and more than a few
    /// if it is abandoned: no check has arrived for longer than the sync interval, and for longer than is likely at the
    /// last demand.
    pub(in super::super) fn return_ending(&mut self, instances: usize, lead: Period, now: Timestamp) {
        self.follow_instances(instances);
        if self.rare.leases().is_empty() {
            return;
        }
        let is_abandoned = now > self.abandoned_at() && self.leased_hits() > self.idle_allowance();
        if self.choice.mode != Coordination::Lease || is_abandoned {
            self.return_leases();
        }
        self.return_leases_before(now.after(lead));
    }

    /// Returns whether a lease that ends within `lead` should be renewed in the call that returns what is left of it,
    /// since hits are likely and the store may have some.
    pub(in super::super) fn should_renew(&self, lead: Period, now: Timestamp) -> bool {
        let tiers = &self.target.tiers;
        let soon = now.after(lead);
        self.choice.mode == Coordination::Lease
            && self.plan.instances > 1
            && flows(tiers)
            && self.leases().first().is_some_and(|lease| lease.has_hold && lease.until <= soon)
            && !self.is_denied(now)
            && self.demand.in_the_next(hold(tiers), now) > 0
    }

    /// Makes leases pending that end before `soon`, as far as that is of use to other instances. Returns the number of
    /// their hits.
    pub(super) fn return_leases_before(&mut self, soon: Timestamp) -> u64 {
        let mut returned = 0;
        if self.plan.instances > 1 && flows(&self.target.tiers) {
            let ends = |lease: &HeldLease| lease.has_hold && lease.until <= soon;
            while let Some(i) = self.leases().iter().position(ends) {
                let lease = self.rare.take_lease(i);
                returned += lease.left().0;
                self.push_pending(PendingDelta::unused(&self.target, lease));
            }
        }
        returned
    }

    fn abandoned_at(&self) -> Timestamp {
        let longest = if self.is_shared_count() { LONGEST_IDLE_HOLD } else { LONGEST_ABANDONMENT };
        let expected = self.demand.time_for(ABANDONED_AFTER, self.last_check_at).min(longest);
        self.last_check_at.after(self.plan.schedule.interval().max(expected))
    }

    /// Returns whether nothing has to be done at `time` but keep a lease until its window ends, as one of `instances`.
    pub(in super::super) fn is_keeping(&self, instances: usize, time: StoreTime) -> bool {
        self.rare.only_lease().is_some_and(|lease| time.latest < lease.until)
            && usize::from(self.plan.instances) == instances
            && self.choice.mode == Coordination::Lease
            && self.is_single_window()
            && self.leased_hits() <= self.idle_allowance()
            && !self.has_unacknowledged()
            && !self.plan.wants_read
    }

    /// Returns whether it is a single fixed window, whose leases end with it: unless they are returned before, they are
    /// forgotten.
    fn is_single_window(&self) -> bool {
        matches!(&self.target.tiers[..], [tier] if tier.algorithm == Algorithm::FixedWindow)
    }

    /// Returns when leases have to be looked at: `lead` before one ends, or when they have to be returned if no check
    /// arrives until then. Also returns whether that has to be punctual. None without a lease, and if nothing of it is
    /// ever returned, so that the sweep is early enough to forget it.
    pub(in super::super) fn lease_is_due_at(&self, lead: Period) -> Option<(Timestamp, bool)> {
        let lease = self.leases().first()?;
        if self.choice.mode != Coordination::Lease {
            // granted when the mode had changed already
            return Some((Timestamp::default(), false));
        }
        let is_kept = self.leased_hits() <= self.idle_allowance();
        if is_kept && self.is_single_window() {
            return None;
        }
        let abandoned_at = if is_kept { lease.until } else { self.abandoned_at() };
        if self.plan.instances > 1 && flows(&self.target.tiers) && lease.has_hold {
            let nanos = lease.until.as_nanos().saturating_sub(lead.as_nanos());
            let ending = Timestamp::from_nanos(nanos);
            return Some(if ending <= abandoned_at { (ending, true) } else { (abandoned_at, false) });
        }
        Some((lease.until.min(abandoned_at), false))
    }
}
