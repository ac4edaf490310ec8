//! The policies of the coordination modes: what a mode does with a counter, without changing it.

pub(in super::super) mod auto;
mod lease;
mod leasing;

pub(in super::super) use self::auto::Switch;
pub(super) use self::{auto::ModeChoice, leasing::Leasing};
use super::LocalCounter;
use crate::limit::{
    Direction, Hits, LimitCheck, OverLimitPolicy, Period, ReservationRequest, Scope, Timestamp,
};

/// The age of the last reply from which a request that `interval` rejects asks the store whether hits were given back.
const STALE_REJECTION: Period = Period::from_secs(1);

/// What a decision asks of a counter.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Ask {
    pub(in super::super) direction: Direction,
    pub(in super::super) hits: Hits,
    pub(in super::super) policy: OverLimitPolicy,
    /// Whether the limit came with the request.
    pub(in super::super) is_own: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Answer {
    /// The estimate decides. Admitted hits are reported.
    Count,
    /// The leases cover the hits.
    Spend,
    Reject(Denial),
    /// The store decides.
    Wait(Asks),
}

/// What a try does with its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Asks {
    /// Takes them. Rejected hits count under [`OverLimitPolicy::Count`].
    Take(OverLimitPolicy),
    /// As `Take`. Leased hits may cover them, and more are leased with them.
    Lease(OverLimitPolicy),
    /// Looks whether they fit, without counting them, after everything that was counted here.
    Look,
    /// Gives them back, for a decision at this instant, whether or not its caller still waits.
    GiveBack(Timestamp),
    Reserve(ReservationRequest),
}

/// Why hits are rejected without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Denial {
    Estimate,
    /// The store has too few for all instances.
    Pause,
    /// The store has denied all until later.
    Cached,
}

// === impl Ask ===

impl Ask {
    pub(in super::super) fn of(check: &LimitCheck<'_>, scope: Scope) -> Self {
        Self {
            direction: check.direction,
            hits: check.hits,
            policy: check.over_limit_policy_in(scope),
            is_own: check.rule.id().is_none(),
        }
    }
}

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
