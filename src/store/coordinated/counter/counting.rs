//! Counts hits in the local estimate.

use super::{
    LocalCounter,
    records::{HeldLease, PendingDelta},
    tiers::{fits, has_ended, look, negative, positive, remaining, take_off},
};
use crate::limit::{
    Decision, Direction, Hits, OverLimitPolicy, Timestamp, algorithm::CountChange, decide,
    decision_from_store,
};

impl LocalCounter {
    /// Decides by the estimate. Hits that are counted become pending.
    pub(in super::super) fn count(
        &mut self,
        direction: Direction,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        let decision = decide(&self.target.tiers, &mut self.estimate, policy, direction, hits, now);
        if direction == Direction::GiveBack {
            self.pend_given_back(hits, now);
        } else if !decision.over {
            self.add_pending(positive(hits.0), now);
        } else if policy == OverLimitPolicy::Count {
            self.push_pending(PendingDelta { rejected: hits.0, ..PendingDelta::of(positive(hits.0), now) });
        } else if self.is_rejected_by_strict_bucket(hits, now) {
            self.push_pending(PendingDelta { rejected_at: now, ..PendingDelta::of(0, now) });
        }
        if decision.over {
            self.return_useless(now);
        }
        decision
    }

    /// A strict bucket notices a try that it rejects itself, not one that only another tier rejects.
    fn is_rejected_by_strict_bucket(&self, hits: Hits, now: Timestamp) -> bool {
        let mut tiers = self.target.tiers.iter().zip(self.estimate.iter());
        tiers.any(|(tier, state)| tier.bucket().strict && !state.probe(tier, now, hits).fits)
    }

    /// The store counts unspent leased hits too, which must stay.
    fn pend_given_back(&mut self, hits: Hits, now: Timestamp) {
        let mut delta = PendingDelta::of(negative(hits.0), now);
        let counts = |lease: &&HeldLease| {
            let tiers = &self.target.tiers;
            !tiers.iter().all(|tier| has_ended(tier, lease.granted_at, now))
        };
        let leases = self.leases().iter().filter(counts);
        let floor = leases.map(|lease| lease.left().0).sum::<u64>().max(delta.change.floor);
        delta.change = CountChange { hits: negative(hits.0), floor };
        if hits > Hits(0) {
            self.push_pending(delta);
        }
    }

    /// Gives back hits that were counted at `at` for a request which was then rejected.
    pub(in super::super) fn uncount(&mut self, hits: Hits, at: Timestamp) {
        take_off(&self.target.tiers, &mut self.estimate, hits, at);
        self.push_pending(PendingDelta { unused: hits.0, unused_until: at, ..PendingDelta::of(0, at) });
    }

    /// Decides as if every instance received the same hits. Not `reported`: the store may have counted them already.
    pub(in super::super) fn count_fallback(
        &mut self,
        direction: Direction,
        hits: Hits,
        reported: bool,
        now: Timestamp,
    ) -> Decision {
        let instances = u64::from(self.plan.instances);
        if instances <= 1 {
            // its estimate also has what was counted after an earlier decision of this kind, here
            self.end_fallback();
            if reported {
                return self.count(direction, OverLimitPolicy::Ignore, hits, now);
            }
            let policy = OverLimitPolicy::Ignore;
            return decide(&self.target.tiers, &mut self.estimate, policy, direction, hits, now);
        }
        let more = self.rare.make_more();
        let states = more.fallback.get_or_insert_with(|| Box::new(self.estimate.clone()));
        let all = Hits(hits.0.saturating_mul(instances));
        let decision = decide(&self.target.tiers, states, OverLimitPolicy::Ignore, direction, all, now);
        if direction == Direction::GiveBack || !decision.over {
            self.count_admitted(direction, hits, reported, now);
        }
        let remaining = u64::from(decision.remaining) / instances;
        Decision { remaining: u32::try_from(remaining).unwrap_or(u32::MAX), ..decision }
    }

    /// Counts leased hits that were used without the store. They count once, since they are of this instance alone.
    pub(in super::super) fn note_in_fallback(&mut self, hits: Hits, now: Timestamp) {
        if let Some(states) = self.rare.more_mut().and_then(|more| more.fallback.as_deref_mut()) {
            for (tier, state) in self.target.tiers.iter().zip(states.iter_mut()) {
                state.take(tier, now, hits);
            }
        }
    }

    /// Counts `hits` that are admitted without a decision. Returns the status before.
    pub(in super::super) fn admit(&mut self, hits: Hits, reported: bool, now: Timestamp) -> Decision {
        let decision = decision_from_store(
            &self.target.tiers,
            &self.estimate,
            OverLimitPolicy::Ignore,
            false,
            Hits(0),
            now,
        );
        self.count_admitted(Direction::Take, hits, reported, now);
        decision
    }

    /// The estimate has to include `hits` that it has not decided: the store may reply before they are reported.
    fn count_admitted(&mut self, direction: Direction, hits: Hits, reported: bool, now: Timestamp) {
        for (tier, state) in self.target.tiers.iter().zip(self.estimate.iter_mut()) {
            match direction {
                Direction::Take => state.take(tier, now, hits),
                Direction::GiveBack => state.give_back(tier, now, hits),
            }
        }
        match direction {
            _ if !reported => {}
            Direction::Take => self.push_pending(PendingDelta::of(positive(hits.0), now)),
            Direction::GiveBack => self.pend_given_back(hits, now),
        }
    }

    pub(in super::super) fn look(&self, hits: Hits, now: Timestamp) -> Decision {
        look(&self.target.tiers, &self.estimate, hits, now)
    }

    pub(in super::super) fn fits(&self, hits: Hits, now: Timestamp) -> bool {
        fits(&self.target.tiers, &self.estimate, hits, now)
    }

    pub(in super::super) fn remaining(&self, now: Timestamp) -> u64 {
        remaining(&self.target.tiers, &self.estimate, now)
    }
}
