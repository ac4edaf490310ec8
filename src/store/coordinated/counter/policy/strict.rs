//! The policy of `strict`: the shared store decides about all hits that are taken.

use super::{Answer, Ask, Asks, Denial, View};
use crate::{
    limit::{Direction, Hits, Timestamp},
    store::coordinated::counter::tiers::has_strict_bucket,
};

// === impl View ===

impl View<'_> {
    /// Returns what becomes of `ask` under `strict`. With `local_cache`, hits that the store has denied until later are
    /// rejected without it.
    pub(in super::super) fn strict_answer(&self, ask: &Ask, local_cache: bool, now: Timestamp) -> Answer {
        match ask.direction {
            // by the estimate, and sent with the next exchange
            Direction::GiveBack => Answer::Count,
            Direction::Take if ask.hits == Hits(0) => Answer::Wait(Asks::Look),
            Direction::Take if local_cache && self.is_cached(now) => Answer::Reject(Denial::Cached),
            Direction::Take => Answer::Wait(Asks::Take(ask.policy)),
        }
    }

    /// Returns whether the store has denied all hits until later than `now`, and not a single one fits by the estimate:
    /// some may have been given back since. Not with a strict bucket, since the store has to notice the try before the
    /// next decision.
    fn is_cached(&self, now: Timestamp) -> bool {
        now < self.denied_until && !has_strict_bucket(&self.target.tiers) && !self.fits(Hits(1), now)
    }
}
