//! Denials that the store has sent, and rejections because of them.

use super::{LocalCounter, tiers::longest_pause};
use crate::limit::{Decision, Direction, Hits, OverLimitPolicy, Timestamp, decision_from_store};

impl LocalCounter {
    /// Has a rejection last until the end of the pause, if there is one: a retry time before the next call would be wrong.
    pub(super) fn until_pause_ends(&self, decision: Decision, now: Timestamp) -> Decision {
        if !decision.over {
            return decision;
        }
        // the clock may have stepped back since the pause began
        let pause = self.denied_until.since(now).min(longest_pause(&self.target.tiers));
        Decision { reset: decision.reset.max(pause), ..decision }
    }

    pub(super) fn rejected(&self, hits: Hits, now: Timestamp) -> Decision {
        decision_from_store(&self.target.tiers, &self.estimate, OverLimitPolicy::Ignore, true, hits, now)
    }

    /// Decides about `hits` that the store has just not granted, as of its last reply. A token that has become available since
    /// is left for the next request. None if they fitted by the estimate even then.
    pub(in super::super) fn decide_at_last_reply(
        &mut self,
        instances: usize,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Option<Decision> {
        let then = self.last_reply_at.get().unwrap_or(now).min(now);
        let is_exact = self.fetch().is_some_and(|fetch| fetch.is_exact);
        if self.fits(hits, then) && !is_exact {
            return None;
        }
        let at = if is_exact { now } else { then };
        // an exact estimate is right where the store's coarser numbers are not
        let decision = self.count(instances, Direction::Take, policy, hits, at);
        let reset = if decision.over { at.after(decision.reset).since(now) } else { decision.reset };
        Some(self.until_pause_ends(Decision { reset, ..decision }, now))
    }

    /// Rejects `hits` that the store did not grant although they fit by the estimate. They count if rejected hits do.
    pub(in super::super) fn reject_unexpectedly(
        &mut self,
        policy: OverLimitPolicy,
        hits: Hits,
        now: Timestamp,
    ) -> Decision {
        let decision = self.rejected(hits, now);
        if policy == OverLimitPolicy::Count {
            for (tier, state) in self.target.tiers.iter().zip(self.estimate.iter_mut()) {
                state.take(tier, now, hits);
            }
            self.push_pending_rejected(hits, now);
        }
        decision
    }

    /// Returns whether the store has denied all hits until later than `now`, and neither `hits` nor a single one fit by the estimate:
    /// some may have been given back since.
    pub(in super::super) fn is_cached(&self, hits: Hits, now: Timestamp) -> bool {
        self.is_denied(now) && !self.fits(hits, now) && !self.fits(Hits(1), now)
    }

    /// Returns whether the store has denied all hits until an instant after `now`.
    pub(in super::super) fn is_denied(&self, now: Timestamp) -> bool {
        now < self.denied_until
    }
}
