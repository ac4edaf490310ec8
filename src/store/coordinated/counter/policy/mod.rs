//! The policies of the coordination modes: what a mode does with a counter, without changing it.

pub(in super::super) mod auto;
mod lease;

pub(in super::super) use self::auto::Switch;
use super::{
    LocalCounter,
    asks::{Answer, Ask, Asks, Denial},
};
use crate::limit::{Direction, Hits, Period, Timestamp};

/// The age of the last reply from which a request that `interval` rejects asks the store whether hits were given back.
const STALE_REJECTION: Period = Period::from_secs(1);

// === impl LocalCounter ===

impl LocalCounter {
    #[inline]
    pub(super) const fn is_alone(&self) -> bool {
        self.plan.instances <= 1
    }

    /// Under `strict` the store decides about all hits that are taken. With `local_cache`, those that it has denied
    /// until later are rejected without it.
    pub(super) fn strict_answer(&self, ask: &Ask, local_cache: bool, now: Timestamp) -> Answer {
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
        let is_strict = self.target.tiers.iter().any(|tier| tier.bucket().strict);
        self.is_denied(now) && !is_strict && !self.fits(Hits(1), now)
    }

    /// Returns from which age of the last reply on `interval` reads the store's count after `ask`: the reply to a report
    /// of counted hits has it.
    #[inline]
    pub(super) fn read_from_age(&self, ask: &Ask, over: bool) -> Option<Period> {
        if ask.hits == Hits(0) {
            return Some(self.plan.schedule.interval());
        }
        (over && !self.is_alone()).then_some(STALE_REJECTION)
    }

    /// Returns the time until `hits` fit, if no others are taken.
    pub(super) fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.estimate.iter().zip(&*self.target.tiers);
        waits.map(|(state, tier)| state.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }
}
