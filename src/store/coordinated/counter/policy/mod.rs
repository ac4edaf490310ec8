//! The policies of the coordination modes: what a mode does with a counter follows from what it sees of it, without
//! changing it.

pub(in super::super) mod auto;
pub(super) mod interval;
mod lease;
mod leasing;
mod strict;

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

/// What a policy sees of a counter.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct View<'a> {
    pub(super) target: &'a Target,
    pub(super) estimate: &'a [CounterState],
    pub(super) demand: &'a Demand,
    pub(super) leases: &'a [HeldLease],
    pub(super) unacknowledged: &'a Unacknowledged,
    pub(super) last_reply_at: Option<Timestamp>,
    pub(super) instances: u64,
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
    const fn is_alone(&self) -> bool {
        self.instances <= 1
    }

    #[inline]
    pub(super) fn leased(&self) -> u64 {
        left_in(self.leases)
    }

    #[inline]
    pub(super) fn remaining(&self, now: Timestamp) -> u64 {
        remaining(&self.target.tiers, self.estimate, now)
    }

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
