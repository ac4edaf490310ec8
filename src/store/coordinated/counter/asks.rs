//! What decisions ask of a counter, and what a policy answers.

use crate::limit::{Direction, Hits, LimitCheck, OverLimitPolicy, ReservationRequest, Scope, Timestamp};

/// What a decision asks of a counter.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Ask {
    pub(in super::super) direction: Direction,
    pub(in super::super) hits: Hits,
    pub(in super::super) policy: OverLimitPolicy,
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
        Self { direction: check.direction, hits: check.hits, policy: check.over_limit_policy_in(scope) }
    }
}
