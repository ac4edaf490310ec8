//! Leases: hits that the store has granted in advance.

use std::sync::Arc;

use super::{
    LocalCounter,
    records::{Dropped, HeldLease},
    tiers::{flows, hold, same_windows, saturated},
};
use crate::{
    limit::{
        Coordination, Hits, Period, Timestamp,
        algorithm::{CounterState, IdleAt},
        capacity,
    },
    store::{
        coordinated::link::Link,
        remote::{Reply, Target},
    },
};

impl LocalCounter {
    pub(super) fn leases(&self) -> &[HeldLease] {
        self.rare.leases()
    }

    #[inline]
    pub(in super::super) fn leased_hits(&self) -> u64 {
        self.leases().iter().map(HeldLease::left).sum()
    }

    /// Leases that were granted to a lone instance last for long. They are returned when there are others.
    pub(in super::super) fn follow_instances(&mut self, instances: usize) {
        let instances = instances + usize::from(self.is_beside);
        if instances > 1 && self.is_alone() && flows(&self.target.tiers) {
            self.return_leases();
        }
        self.plan.instances = u16::try_from(instances).unwrap_or(u16::MAX);
    }

    pub(in super::super) fn record_demand(&mut self, hits: Hits, now: Timestamp) {
        self.demand.record(hits.0.min(capacity(&self.target.tiers)), now);
    }

    /// To be called before `reply` is applied to the estimate, which excludes leases. They must be used within `time`.
    /// Hits for another limit than that of `target` go back.
    pub(super) fn hold_granted(
        &mut self,
        hits: u64,
        target: &Arc<Target>,
        reply: &Reply,
        time: Period,
        now: Timestamp,
    ) {
        if hits == 0 {
            return;
        }
        let ends = reply.counters.iter().map(|state| match state {
            CounterState::FixedWindow(window) => window.end(),
            _ => now.after(time),
        });
        let lease = HeldLease::new(Hits(hits), now, ends.min().unwrap_or(now));
        let tiers = &self.target.tiers;
        let is_of_lone_instance = !self.is_alone() && flows(tiers) && time >= hold(tiers, true);
        if self.choice.mode != Coordination::Lease || is_of_lone_instance || !self.serves(target) {
            // asked for before
            self.push_pending(lease.unused());
        } else {
            self.rare.add_lease(lease);
        }
        let idle_at = reply.counters.iter().map(CounterState::idle_at).max();
        self.heard.granted_until = self.heard.granted_until.max(IdleAt::of(idle_at.unwrap_or_default()));
    }

    /// Hits that were given back before the reply must not take the granted `hits` along.
    pub(super) fn keep_granted(&mut self, hits: u64, now: Timestamp) {
        if hits > 0 {
            self.plan.looks = 0;
        }
        for delta in self.unacknowledged.pending_mut() {
            if !delta.change.is_addition() && same_windows(&self.target.tiers, delta.at, now) {
                delta.change.floor = delta.change.floor.saturating_add(hits);
            }
        }
    }

    /// Hits of ended leases that some tier still counts are returned to the store.
    #[inline]
    pub(in super::super) fn expire_leases(&mut self, link: &Link) -> Dropped {
        // most counters have none most of the time
        let Some(first) = self.leases().first() else { return Dropped::default() };
        let end = self.ended_by(link);
        if first.until > end {
            return Dropped::default();
        }
        self.return_leases_if(|lease| lease.until <= end);
        self.drop_ended(link.time.now)
    }

    /// The leases must have as many `hits`.
    pub(super) fn spend_held(&mut self, hits: u64) {
        let mut needed = hits;
        while let Some(first) = self.rare.leases_mut().first_mut() {
            if first.left() > needed {
                first.left -= saturated(needed);
                return;
            }
            needed -= first.left();
            self.rare.pop_lease();
        }
    }

    pub(in super::super) fn return_leases(&mut self) {
        self.return_leases_if(|_| true);
    }

    pub(in super::super) fn return_abandoned(&mut self, now: Timestamp) {
        if self.abandoned_at().is_some_and(|at| now > at) {
            self.return_leases();
        }
    }

    /// Returns the hits of those leases that end first and `are_over`.
    fn return_leases_if(&mut self, are_over: impl Fn(&HeldLease) -> bool) {
        while self.leases().first().is_some_and(&are_over)
            && let Some(lease) = self.rare.pop_lease()
        {
            self.push_pending(lease.unused());
        }
    }

    /// Returns the leases of fixed windows if not a single hit fits until they end. Where rejected hits count, as in
    /// envoyproxy/ratelimit, others read the store's count, which is soon the number of all hits.
    pub(super) fn return_useless(&mut self, now: Timestamp) {
        if self.leased_hits() > 0 && !flows(&self.target.tiers) && self.remaining(now) == 0 {
            self.return_leases();
        }
    }
}
