//! Leases: hits that the store has granted in advance, and denials that it has sent.

use super::{
    LocalCounter,
    records::{Dropped, HeldLease, PendingDelta, negative},
    tiers::{has_ended, has_flowed_back},
};
use crate::{
    limit::{Coordination, Decision, Hits, OverLimitPolicy, Period, Timestamp, decision_from_store},
    store::coordinated::store_time::StoreTime,
};

/// The number of expected intervals without a hit after which a counter is abandoned. With random arrivals, 1 in 150 intervals
/// is that long by chance.
const ABANDONED_AFTER: u64 = 5;

/// The longest time until a counter is abandoned. If hits are rarer than that, a call for each hit costs little.
const LONGEST_ABANDONMENT: Period = Period::from_secs(10);

impl LocalCounter {
    /// Returns the hits that may be admitted without a call.
    pub(in super::super) fn leased_hits(&self) -> u64 {
        self.leases.iter().map(|lease| lease.left).sum()
    }

    /// Removes leases that have ended. Hits that some tier still counts are returned to the store.
    pub(in super::super) fn expire_leases(&mut self, time: StoreTime) -> Dropped {
        let mut dropped = Dropped::default();
        while let Some(lease) = self.leases.first().filter(|lease| lease.until <= time.latest).copied() {
            self.leases.remove(0);
            let tiers = &self.target.tiers;
            let ended = tiers.iter().all(|tier| has_ended(tier, lease.granted_at, lease.until));
            if ended || has_flowed_back(tiers, lease.granted_at, lease.until, time.latest) {
                dropped.stranded += lease.left;
            } else {
                self.return_lease(lease);
            }
        }
        dropped
    }

    /// Takes `hits` from the leases. Returns none if the leases hold fewer.
    pub(in super::super) fn spend(&mut self, hits: Hits, now: Timestamp) -> Option<Decision> {
        if self.leased_hits() < hits.0 {
            return None;
        }
        let mut needed = hits.0;
        for lease in &mut self.leases {
            let spent = needed.min(lease.left);
            lease.left -= spent;
            needed -= spent;
        }
        self.leases.retain(|lease| lease.left > 0);
        let mut decision = self.status(now);
        decision.over = false;
        // leased hits that are not spent do not count as hits yet
        decision.before = decision.before.minus(Hits(self.leased_hits())).minus(hits);
        Some(decision)
    }

    /// Puts hits back that were spent for a request which was then rejected.
    pub(in super::super) fn unspend(&mut self, hits: Hits, now: Timestamp) {
        match self.leases.first_mut() {
            Some(lease) => lease.left += hits.0,
            None => self.add_pending(negative(hits.0), now),
        }
    }

    /// Rejects `hits` if the store's replies show that they do not fit now.
    pub(in super::super) fn known_rejection(&self, hits: Hits, now: Timestamp) -> Option<Decision> {
        let missing = hits.minus(Hits(self.leased_hits()));
        let fits =
            || self.estimate.iter().zip(&self.target.tiers).all(|(s, tier)| s.probe(tier, now, missing).fits);
        if missing == Hits(0) || (now >= self.denied_until && fits()) {
            return None;
        }
        let decision = decision_from_store(
            &self.target.tiers,
            &self.estimate,
            OverLimitPolicy::Ignore,
            true,
            missing,
            now,
        );
        Some(Decision {
            before: decision.before.minus(Hits(self.leased_hits())),
            // the retry time has to be accurate: no earlier than this instance's next call
            reset: decision.reset.max(self.denied_until.since(now)),
            ..decision
        })
    }

    /// Rejects `hits` that the store has just not granted, as of its last reply. A token that has become available since is
    /// left for the next request.
    pub(in super::super) fn rejection_at_last_reply(&self, hits: Hits, now: Timestamp) -> Decision {
        let then = self.last_reply_at.unwrap_or(now);
        let missing = hits.minus(Hits(self.leased_hits()));
        let decision = decision_from_store(
            &self.target.tiers,
            &self.estimate,
            OverLimitPolicy::Ignore,
            true,
            missing,
            then,
        );
        Decision {
            before: decision.before.minus(Hits(self.leased_hits())),
            reset: then.after(decision.reset).max(self.denied_until).since(now),
            ..decision
        }
    }

    /// Returns whether the store has denied all hits until an instant after `now`.
    pub(in super::super) fn is_denied(&self, now: Timestamp) -> bool {
        now < self.denied_until
    }

    /// Makes all unspent leased hits pending, to return them to the store.
    pub(in super::super) fn return_leases(&mut self) {
        for lease in std::mem::take(&mut self.leases) {
            self.return_lease(lease);
        }
    }

    fn return_lease(&mut self, lease: HeldLease) {
        let (hits, lease_end) = (negative(lease.left), Some(lease.until));
        let at = lease.granted_at;
        self.push_pending(PendingDelta { at, last_at: at, hits, rejected: 0, lease_end });
    }

    /// Returns whether no check has arrived for longer than the sync interval, and for longer than is likely at the last demand.
    pub(in super::super) fn is_abandoned(&self, now: Timestamp) -> bool {
        now > self.abandoned_at()
    }

    fn abandoned_at(&self) -> Timestamp {
        let expected = self.demand.time_for(ABANDONED_AFTER, self.last_check_at).min(LONGEST_ABANDONMENT);
        self.last_check_at.after(self.schedule.interval.max(expected))
    }

    /// Returns when a lease has ended, or has to be returned if no check arrives until then. None without a lease.
    pub(in super::super) fn lease_is_due_at(&self) -> Option<Timestamp> {
        self.leases.first().map(|lease| match self.mode {
            Coordination::Lease => lease.until.min(self.abandoned_at()),
            // granted when the mode had changed already
            _ => Timestamp::default(),
        })
    }
}
