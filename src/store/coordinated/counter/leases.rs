//! Leases: hits that the store has granted in advance.

use super::{
    LocalCounter,
    records::{Dropped, HeldLease, PendingDelta, left_in},
    tiers::{flows, has_ended, has_flowed_back, is_mixed, lone_hold, same_windows, saturated, take_off},
};
use crate::{
    limit::{
        Coordination, Hits, Period, Tier, Timestamp,
        algorithm::{CounterState, IdleAt},
        capacity,
    },
    store::{coordinated::link::StoreTime, remote::Reply},
};

// === impl LocalCounter ===

impl LocalCounter {
    pub(super) fn leases(&self) -> &[HeldLease] {
        self.rare.leases()
    }

    #[inline]
    pub(in super::super) fn has_leases(&self) -> bool {
        !self.rare.leases().is_empty()
    }

    pub(in super::super) fn leased_hits(&self) -> u64 {
        left_in(self.leases())
    }

    /// Leases that were granted to a lone instance last for long. They are returned when there are others.
    pub(in super::super) fn follow_instances(&mut self, instances: usize) {
        if instances > 1 && self.plan.instances <= 1 && flows(&self.target.tiers) {
            self.return_leases();
        }
        self.plan.instances = u16::try_from(instances).unwrap_or(u16::MAX);
    }

    /// Returns whether a lease of this `time` was requested as by a lone instance, which this one is no longer.
    pub(super) fn outlasts_others(&self, time: Period) -> bool {
        let tiers = &self.target.tiers;
        self.plan.instances > 1 && flows(tiers) && time >= lone_hold(tiers)
    }

    pub(in super::super) fn record_demand(&mut self, hits: Hits, now: Timestamp) {
        self.demand.record(hits.0.min(capacity(&self.target.tiers)), now);
    }

    /// To be called before `reply` is applied to the estimate, which excludes leases. They must be used within `hold`.
    pub(super) fn hold_granted(&mut self, hits: u64, reply: &Reply, hold: Period, now: Timestamp) {
        if hits == 0 {
            return;
        }
        let ends = reply.counters.iter().map(|state| match state {
            CounterState::FixedWindow(window) => window.end(),
            _ => now.after(hold),
        });
        let until = ends.min().unwrap_or(now);
        let lease = HeldLease::new(Hits(hits), now, until);
        if self.choice.mode != Coordination::Lease || self.is_beside {
            // asked for before
            self.push_pending(PendingDelta::unused(lease));
        } else {
            self.rare.add_lease(lease);
        }
        let idle_at = reply.counters.iter().map(CounterState::idle_at).max();
        self.heard.granted_until = self.heard.granted_until.max(IdleAt::of(idle_at.unwrap_or_default()));
    }

    /// Hits that were given back before the reply must not take the granted `hits` along.
    pub(super) fn keep_granted(&mut self, hits: u64, now: Timestamp) {
        if hits > 0
            && let Some(leasing) = self.rare.more_mut().and_then(|more| more.leasing.as_deref_mut())
        {
            leasing.note_admission();
        }
        for delta in self.unacknowledged.pending_mut() {
            if !delta.change.is_addition() && same_windows(&self.target.tiers, delta.at, now) {
                delta.change.floor = delta.change.floor.saturating_add(hits);
            }
        }
    }

    /// Hits of ended leases that some tier still counts are returned to the store.
    #[inline]
    pub(in super::super) fn expire_leases(&mut self, time: StoreTime) -> Dropped {
        // most counters have none most of the time
        if self.has_leases() { self.expire_held(time) } else { Dropped::default() }
    }

    fn expire_held(&mut self, time: StoreTime) -> Dropped {
        let mut dropped = Dropped::default();
        while self.leases().first().is_some_and(|lease| lease.until <= time.latest)
            && let Some(lease) = self.rare.pop_lease()
        {
            let tiers = &self.target.tiers;
            let ended = tiers.iter().all(|tier| has_ended(tier, lease.granted_at, lease.until));
            let is_kept = self.must_keep(tiers, lease.granted_at, lease.until, time.latest);
            if ended || is_kept {
                dropped.stranded += lease.left().0;
            } else {
                self.push_pending(PendingDelta::unused(lease));
            }
        }
        dropped
    }

    /// Returns whether hits that were granted at `at`, to be used until `until`, must no longer be returned. A lone
    /// instance, whose estimate of a bucket is exact, still has to return those of fixed windows beside it.
    pub(super) fn must_keep(&self, tiers: &[Tier], at: Timestamp, until: Timestamp, now: Timestamp) -> bool {
        has_flowed_back(tiers, at, until, now) && !(self.plan.instances <= 1 && is_mixed(tiers))
    }

    /// The leases must have as many `hits`.
    pub(super) fn spend_held(&mut self, hits: u64, now: Timestamp) {
        let mut needed = hits;
        while let Some(first) = self.rare.leases_mut().first_mut() {
            if first.left().0 > needed {
                first.left -= saturated(needed);
                return;
            }
            needed -= first.left().0;
            self.rare.pop_lease();
        }
        self.forget_leasing(now);
    }

    pub(in super::super) fn return_leases(&mut self) {
        while let Some(lease) = self.rare.pop_lease() {
            self.push_pending(PendingDelta::unused(lease));
        }
    }

    /// Returns leases that end before a return could arrive, `lead` from now, and all if the counter is abandoned.
    pub(in super::super) fn return_ending(&mut self, lead: Period, now: Timestamp) {
        if !self.has_leases() {
            return;
        }
        if self.view().is_abandoned(now) {
            self.return_leases();
        }
        self.return_leases_before(now.after(lead));
    }

    /// Returns leases that end before `soon`, if others can use them. The result is the number of their hits.
    pub(super) fn return_leases_before(&mut self, soon: Timestamp) -> u64 {
        let mut returned = 0;
        let ends = |counter: &Self| {
            let view = counter.view();
            view.leases.first().is_some_and(|lease| view.returns_before(lease, soon))
        };
        while ends(self)
            && let Some(lease) = self.rare.pop_lease()
        {
            returned += lease.left().0;
            self.push_pending(PendingDelta::unused(lease));
        }
        returned
    }

    /// Returns whether nothing has to be done but keep one lease until its window ends.
    pub(in super::super) fn is_keeping(&self, time: StoreTime) -> bool {
        self.rare.only_lease().is_some_and(|lease| time.latest < lease.until)
            && self.view().keeps_all()
            && !self.has_unacknowledged()
            && !self.plan.wants_read
    }

    /// For a request that was then rejected. The hits go into a lease of the same windows. Where hits flow back and
    /// others take them, the store gets them: it may let them go sooner than those of another lease.
    pub(in super::super) fn unspend(&mut self, hits: Hits, at: Timestamp) {
        let tiers = &self.target.tiers;
        let stays = self.plan.instances > 1 && flows(tiers);
        let leases = if stays { &mut [] } else { self.rare.leases_mut() };
        let held = leases.iter_mut().find_map(|lease| {
            let left = lease.left.checked_add(u32::try_from(hits.0).ok()?)?;
            same_windows(tiers, lease.granted_at, at).then_some((left, lease))
        });
        match held {
            Some((left, lease)) => {
                lease.left = left;
                take_off(&self.target.tiers, &mut self.estimate, hits, at);
            }
            None => self.uncount(hits, at),
        }
    }

    /// Returns the leases of fixed windows if not a single hit fits until they end. Where rejected hits count, as in
    /// envoyproxy/ratelimit, others read the store's count, which is soon the number of all hits.
    pub(super) fn return_useless(&mut self, now: Timestamp) {
        if !self.leases().is_empty() && !flows(&self.target.tiers) && self.remaining(now) == 0 {
            self.return_leases();
        }
    }
}
