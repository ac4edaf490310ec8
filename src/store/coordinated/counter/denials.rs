//! Denials that the store has sent, and rejections because of them.

use super::{LocalCounter, tiers::longest_pause};
use crate::limit::{Decision, Hits, OverLimitPolicy, Timestamp, decision_from_store};

impl LocalCounter {
    /// Has a rejection last until the end of the pause, if there is one: a retry time before the next call would be
    /// wrong.
    pub(super) fn until_pause_ends(&self, decision: Decision, now: Timestamp) -> Decision {
        if !decision.over {
            return decision;
        }
        // the clock may have stepped back since the pause began
        let pause = self.plan.denied_until.since(now).min(longest_pause(&self.target.tiers));
        Decision { reset: decision.reset.max(pause), ..decision }
    }

    pub(super) fn rejected(&self, hits: Hits, now: Timestamp) -> Decision {
        decision_from_store(&self.target.tiers, &self.estimate, OverLimitPolicy::Ignore, true, hits, now)
    }

    /// Returns whether the store has denied all hits until later than `now`, and neither `hits` nor a single one fit by
    /// the estimate: some may have been given back since.
    pub(in super::super) fn is_cached(&self, hits: Hits, now: Timestamp) -> bool {
        self.is_denied(now) && !self.fits(hits, now) && !self.fits(Hits(1), now)
    }

    /// Returns whether the store has denied all hits until an instant after `now`.
    pub(in super::super) fn is_denied(&self, now: Timestamp) -> bool {
        now < self.plan.denied_until
    }
}
