//! The policy of `strict`: the shared store decides about all hits that are taken.

use super::{Answer, Ask, Asks, Denial, View};
use crate::{
    limit::{Direction, Hits, Timestamp},
    store::coordinated::counter::tiers::has_strict_bucket,
};

// === impl View ===

impl View<'_> {
    /// With `local_cache`, hits that the store has denied until later are rejected without it.
    pub(in super::super) fn strict_answer(&self, ask: &Ask, local_cache: bool, now: Timestamp) -> Answer {
        match ask.direction {
            // by the estimate, and sent with the next exchange
            Direction::GiveBack => Answer::Count,
            Direction::Take if ask.hits == Hits(0) => Answer::Wait(Asks::Look),
            Direction::Take if local_cache && self.is_cached(now) => Answer::Reject(Denial::Cached),
            Direction::Take => Answer::Wait(Asks::Take(ask.policy)),
        }
    }

    /// Some hits may have been given back since the denial. A strict bucket has to notice every try.
    fn is_cached(&self, now: Timestamp) -> bool {
        now < self.denied_until && !has_strict_bucket(&self.target.tiers) && !self.fits(Hits(1), now)
    }
}
