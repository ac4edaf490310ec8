//! The policies of the coordination modes: what a mode does with a counter follows from what it sees of it, without
//! changing it.

pub(in super::super) mod auto;
pub(super) mod interval;
mod lease;
mod leasing;
mod strict;
#[cfg(test)]
mod tests;

pub(in super::super) use self::auto::{AutoPolicy, Switch};
pub(super) use self::{auto::ModeChoice, lease::Scarcity, leasing::Leasing};
use super::{
    demand::Demand,
    records::{HeldLease, left_in},
    tiers::{fits, remaining},
    unacknowledged::Unacknowledged,
};
use crate::{
    limit::{
        Direction, Hits, LimitCheck, OverLimitPolicy, Period, ReservationRequest, Scope, Timestamp,
        algorithm::CounterState,
    },
    store::remote::Target,
};

/// What a decision asks of a counter.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Ask {
    pub(in super::super) direction: Direction,
    pub(in super::super) hits: Hits,
    /// What becomes of hits that are rejected.
    pub(in super::super) policy: OverLimitPolicy,
    /// Whether the limit came with the request.
    pub(in super::super) is_own: bool,
}

/// What a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Answer {
    /// The estimate admits the hits, which are reported, or rejects them.
    Count,
    /// What is held covers the hits.
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
    /// As `Take`. Hits that are held meanwhile are used too, and more are held with them.
    Lease(OverLimitPolicy),
    /// Looks whether they fit, without counting them, after everything that was counted here.
    Look,
    /// Gives them back, for a decision at this instant, whether or not its caller still waits.
    GiveBack(Timestamp),
    /// Takes between the fewest and the most hits that are of use, for a time.
    Reserve(ReservationRequest),
}

/// Why hits are rejected without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Denial {
    /// They do not fit by the estimate.
    Estimate,
    /// The store has too few for all instances.
    Pause,
    /// The store has denied all until later.
    Cached,
}

/// What a policy sees of a counter.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct View<'a> {
    /// The limit in use.
    pub(super) target: &'a Target,
    /// The estimate of the shared counters, one for each tier.
    pub(super) estimate: &'a [CounterState],
    pub(super) demand: &'a Demand,
    /// What is held under the limit in use, in order of the ends.
    pub(super) leases: &'a [HeldLease],
    /// What the store has not acknowledged.
    pub(super) unacknowledged: &'a Unacknowledged,
    pub(super) last_reply_at: Option<Timestamp>,
    /// The number of instances, this one included.
    pub(super) instances: u64,
    /// The instant until which the store has denied all hits.
    pub(super) denied_until: Timestamp,
    pub(super) last_check_at: Timestamp,
    pub(super) sync_interval: Period,
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

// === impl View ===

impl View<'_> {
    /// Returns whether no other instance uses the store.
    const fn is_alone(&self) -> bool {
        self.instances <= 1
    }

    /// Returns the hits that may be admitted without a call.
    #[inline]
    pub(super) fn leased(&self) -> u64 {
        left_in(self.leases)
    }

    /// Returns the hits that all tiers would still admit.
    #[inline]
    pub(super) fn remaining(&self, now: Timestamp) -> u64 {
        remaining(&self.target.tiers, self.estimate, now)
    }

    /// Returns whether all tiers would admit `hits`.
    #[inline]
    pub(super) fn fits(&self, hits: Hits, now: Timestamp) -> bool {
        fits(&self.target.tiers, self.estimate, hits, now)
    }

    /// Returns the time until `hits` fit, if no others are taken.
    pub(super) fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.estimate.iter().zip(&self.target.tiers);
        waits.map(|(state, tier)| state.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }
}
