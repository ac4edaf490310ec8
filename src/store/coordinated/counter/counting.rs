//! Counts hits in the local estimate.

use super::{
    LocalCounter,
    records::{PendingDelta, negative, positive},
    tiers::capacity,
};
use crate::limit::{
    Algorithm, Decision, Direction, Hits, OverLimitPolicy, Timestamp, decide, decision_from_store,
};

impl LocalCounter {
    /// Decides by the estimate, and counts. If there is a bucket, each hit counts in the estimate as if every one of
    /// `instances` had taken it: instances must not all spend the same inflow. A bucket, unlike a window, forgets hits that
    /// were taken while it was empty, so later decisions would not compensate for them.
    pub(in super::super) fn count(
        &mut self,
        instances: usize,
        direction: Direction,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        self.instances = instances;
        let tiers = &self.target.tiers;
        let has_bucket = tiers.iter().any(|tier| matches!(tier.algorithm, Algorithm::TokenBucket(_)));
        // limited, so that the weighted hits never exceed the capacity
        let most = capacity(tiers) / hits.0.max(1);
        let weight = if has_bucket { (instances as u64).min(most).max(1) } else { 1 };
        let weighted = Hits(hits.0.saturating_mul(weight));
        let decision = decide(tiers, &mut self.estimate, policy, direction, weighted, now);
        if direction == Direction::GiveBack {
            self.add_pending(negative(hits.0), now);
        } else if !decision.over {
            self.add_pending(positive(hits.0), now);
        } else if policy == OverLimitPolicy::Count {
            self.push_pending(PendingDelta {
                at: now,
                last_at: now,
                hits: positive(hits.0),
                rejected: hits.0,
                lease_end: None,
            });
        }
        decision
    }

    /// Decides without the store as if every one of `instances` received the same hits: each hit counts once for each of them.
    pub(in super::super) fn count_fallback(
        &mut self,
        instances: usize,
        direction: Direction,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        let instances = instances as u64;
        let states = self.fallback.get_or_insert_with(|| Box::new(self.estimate.clone()));
        let all = Hits(hits.0.saturating_mul(instances));
        let decision = decide(&self.target.tiers, states, OverLimitPolicy::Ignore, direction, all, now);
        if direction == Direction::GiveBack || !decision.over {
            self.count_admitted(direction, hits, now);
        }
        let remaining = u64::from(decision.remaining) / instances;
        Decision { remaining: u32::try_from(remaining).unwrap_or(u32::MAX), ..decision }
    }

    /// Counts `hits` that are admitted without a decision. Returns the status before.
    pub(in super::super) fn admit(&mut self, hits: Hits, now: Timestamp) -> Decision {
        let decision = self.estimated_status(now);
        self.count_admitted(Direction::Take, hits, now);
        decision
    }

    /// Returns how the counter stands by the estimate alone: the tier with the lowest share left, as an admitted decision
    /// about no hits.
    pub(super) fn estimated_status(&self, now: Timestamp) -> Decision {
        decision_from_store(&self.target.tiers, &self.estimate, OverLimitPolicy::Ignore, false, Hits(0), now)
    }

    /// Counts `hits` that were not decided by the estimate. The estimate has to include them: the store may reply again
    /// before they are reported.
    fn count_admitted(&mut self, direction: Direction, hits: Hits, now: Timestamp) {
        for (tier, state) in self.target.tiers.iter().zip(&mut self.estimate) {
            match direction {
                Direction::Take => state.take(tier, now, hits),
                Direction::GiveBack => state.give_back(tier, now, hits),
            }
        }
        self.add_pending(if direction == Direction::Take { positive(hits.0) } else { negative(hits.0) }, now);
    }

    /// Returns the status of the counter by the estimate, as a decision about no hits.
    pub(in super::super) fn status(&self, now: Timestamp) -> Decision {
        let mut decision = self.estimated_status(now);
        let left = u64::from(decision.remaining).saturating_add(self.leased_hits());
        decision.remaining = u32::try_from(left).unwrap_or(u32::MAX);
        decision.over =
            self.estimate.iter().zip(&self.target.tiers).any(|(s, tier)| !s.probe(tier, now, Hits(0)).fits);
        decision
    }

    /// Returns the hits that all tiers would still admit, by the estimate.
    pub(super) fn remaining(&self, now: Timestamp) -> u64 {
        let left = self
            .estimate
            .iter()
            .zip(&self.target.tiers)
            .map(|(s, tier)| s.availability(tier, now).remaining.into());
        left.min().unwrap_or_default()
    }
}
