//! What the store granted in advance: spent, given back, and missed.

use super::{
    LocalCounter, Lost, negative,
    tiers::{has_ended, has_flowed_back},
};
use crate::{
    limit::{Decision, Hits, OverLimitPolicy, Period, Timestamp, decision_from_store},
    store::coordinated::clock::StoreTime,
};

/// Where so many hits were likely to come and none came, nobody comes any more: by chance that happens once in 150 times.
const DESERTED_AFTER: u64 = 5;

/// Who comes more seldom than five times in this does without what is held for him: to ask each time costs little.
const LONGEST_PATIENCE: Period = Period::from_secs(10);

impl LocalCounter {
    /// Hits that may be taken without asking.
    pub(in super::super) fn leased(&self) -> u64 {
        self.leases.iter().map(|lease| lease.left).sum()
    }

    /// Drops what has ended. What long tiers still count goes back to the store.
    pub(in super::super) fn end_leases(&mut self, time: StoreTime) -> Lost {
        let mut lost = Lost::default();
        while let Some(lease) = self.leases.first().filter(|lease| lease.until <= time.latest).copied() {
            self.leases.remove(0);
            let tiers = &self.target.tiers;
            let ended = tiers.iter().all(|tier| has_ended(tier, lease.at, lease.until));
            if ended || has_flowed_back(tiers, lease.at, time.latest) {
                lost.stranded += lease.left;
            } else {
                self.give_back(lease);
            }
        }
        lost
    }

    /// Takes `hits` from what was granted; none if that does not do.
    pub(in super::super) fn spend(&mut self, hits: Hits, now: Timestamp) -> Option<Decision> {
        if self.leased() < hits.0 {
            return None;
        }
        let mut needed = hits.0;
        for lease in &mut self.leases {
            let spent = needed.min(lease.left);
            lease.left -= spent;
            needed -= spent;
        }
        self.leases.retain(|lease| lease.left > 0);
        let mut decision = self.look(now);
        decision.over = false;
        // what is granted and not spent is no hit yet
        decision.before = decision.before.minus(Hits(self.leased())).minus(hits);
        Some(decision)
    }

    /// Puts hits back that were spent for a request which then did not pass.
    pub(in super::super) fn unspend(&mut self, hits: Hits, now: Timestamp) {
        match self.leases.first_mut() {
            Some(lease) => lease.left += hits.0,
            None => self.owe(negative(hits.0), now),
        }
    }

    /// Whether `hits` are certain not to fit now, by what the store told.
    pub(in super::super) fn refuses(&self, hits: Hits, now: Timestamp) -> Option<Decision> {
        let missing = hits.minus(Hits(self.leased()));
        let fits =
            || self.view.iter().zip(&self.target.tiers).all(|(c, tier)| c.probe(tier, now, missing).fits);
        if missing == Hits(0) || (now >= self.denied_until && fits()) {
            return None;
        }
        let decision =
            decision_from_store(&self.target.tiers, &self.view, OverLimitPolicy::Ignore, true, missing, now);
        Some(Decision {
            before: decision.before.minus(Hits(self.leased())),
            // what is told is to come true: no sooner than this instance asks again
            reset: decision.reset.max(self.denied_until.since(now)),
            ..decision
        })
    }

    /// Refuses `hits` that the store was asked for and had no more of, as of then: meanwhile a token may have come back,
    /// but it is for who asks now.
    pub(in super::super) fn refuse(&self, hits: Hits, now: Timestamp) -> Decision {
        let then = self.heard_at.unwrap_or(now);
        let missing = hits.minus(Hits(self.leased()));
        let decision =
            decision_from_store(&self.target.tiers, &self.view, OverLimitPolicy::Ignore, true, missing, then);
        Decision {
            before: decision.before.minus(Hits(self.leased())),
            reset: then.after(decision.reset).max(self.denied_until).since(now),
            ..decision
        }
    }

    /// Whether nothing fits until some instant, by what the store told.
    pub(in super::super) fn is_denied(&self, now: Timestamp) -> bool {
        now < self.denied_until
    }

    /// Gives everything back that was granted and is not spent.
    pub(in super::super) fn give_leases_back(&mut self) {
        for lease in std::mem::take(&mut self.leases) {
            self.give_back(lease);
        }
    }

    /// Whether nobody asks for it any more: for longer than an interval, and for longer than chance would have it.
    pub(in super::super) fn is_deserted(&self, now: Timestamp) -> bool {
        let patience = self.demand.time_for(DESERTED_AFTER, self.asked_at).min(LONGEST_PATIENCE);
        now.since(self.asked_at) > self.sync.interval.max(patience)
    }

    /// Whether there is anything that the store has to be told, or is being told.
    pub(in super::super) fn owes(&self) -> bool {
        !self.unsent.is_empty() || !self.in_flight.is_empty()
    }

    /// Whether it can be forgotten without loss.
    pub(in super::super) fn is_idle(&self, now: Timestamp) -> bool {
        self.owes_nothing()
            && now >= self.denied_until
            && self.view.iter().all(|counter| counter.idle_at() <= now)
    }

    /// Whether it can be forgotten at the price of asking the store again.
    pub(in super::super) fn owes_nothing(&self) -> bool {
        self.unsent.is_empty() && self.in_flight.is_empty() && self.leases.is_empty() && !self.fetch.running
    }
}
