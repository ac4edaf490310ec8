//! Counts hits in the local estimate.

use super::{
    LocalCounter,
    records::{HeldLease, PendingDelta},
    tiers::{all_ended, fits, look, negative, positive, remaining},
};
use crate::limit::{
    Decision, Direction, Hits, OverLimitPolicy, Tier, Timestamp, algorithm::CounterState, decide,
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

    fn pend_given_back(&mut self, hits: Hits, now: Timestamp) {
        if hits == Hits(0) {
            return;
        }
        let mut delta = PendingDelta::of(negative(hits.0), now);
        let counts = |lease: &&HeldLease| !all_ended(&self.target.tiers, lease.granted_at, now);
        // the store counts unspent leased hits too, which must stay
        delta.change.floor = self.leases().iter().filter(counts).map(HeldLease::left).sum();
        self.push_pending(delta);
    }

    /// Gives back hits that were counted at `at` for a request which was then rejected.
    pub(in super::super) fn uncount(&mut self, hits: Hits, at: Timestamp) {
        self.return_unused(PendingDelta::unused(hits.0, at, at), at);
    }

    /// The hits are available here at once, in tiers that still count them.
    pub(super) fn return_unused(&mut self, delta: PendingDelta, now: Timestamp) {
        self.states_mut().for_each(|(tier, state)| delta.apply(tier, state, now));
        self.push_pending(delta);
    }

    /// Decides as if every instance received the same hits. Not `reported`: the store may have counted them already.
    pub(in super::super) fn count_fallback(
        &mut self,
        direction: Direction,
        hits: Hits,
        reported: bool,
        now: Timestamp,
    ) -> Decision {
        let (instances, policy) = (u64::from(self.plan.instances), OverLimitPolicy::Ignore);
        if instances <= 1 {
            // its estimate also has what was counted after an earlier decision of this kind, here
            self.rare.fallback = None;
            return if reported {
                self.count(direction, policy, hits, now)
            } else {
                decide(&self.target.tiers, &mut self.estimate, policy, direction, hits, now)
            };
        }
        let states = self.rare.fallback.get_or_insert_with(|| Box::new(self.estimate.clone()));
        let all = Hits(hits.0.saturating_mul(instances));
        let decision = decide(&self.target.tiers, states, policy, direction, all, now);
        if direction == Direction::GiveBack || !decision.over {
            self.count_admitted(direction, hits, reported, now);
        }
        let remaining = u64::from(decision.remaining) / instances;
        Decision { remaining: u32::try_from(remaining).unwrap_or(u32::MAX), ..decision }
    }

    /// Counts leased hits that were used without the store. They count once, since they are of this instance alone.
    pub(in super::super) fn note_in_fallback(&mut self, hits: Hits, now: Timestamp) {
        if let Some(states) = &mut self.rare.fallback {
            for (tier, state) in self.target.tiers.iter().zip(states.iter_mut()) {
                state.take(tier, now, hits);
            }
        }
    }

    /// Counts `hits` that are admitted without a decision. Returns the status before.
    pub(in super::super) fn admit(&mut self, hits: Hits, reported: bool, now: Timestamp) -> Decision {
        let (tiers, policy) = (&self.target.tiers, OverLimitPolicy::Ignore);
        let decision = decision_from_store(tiers, &self.estimate, policy, false, Hits(0), now);
        self.count_admitted(Direction::Take, hits, reported, now);
        decision
    }

    /// The estimate has to include `hits` that it has not decided: the store may reply before they are reported.
    fn count_admitted(&mut self, direction: Direction, hits: Hits, reported: bool, now: Timestamp) {
        for (tier, state) in self.states_mut() {
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

    /// The estimate, by tier.
    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = (&Tier, &mut CounterState)> {
        self.target.tiers.iter().zip(self.estimate.iter_mut())
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
