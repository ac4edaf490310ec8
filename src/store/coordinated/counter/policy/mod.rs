//! The policies of the coordination modes: what a mode does with a counter follows from what it sees of it, without
//! changing it.

mod lease;
mod leasing;

pub(in super::super) use self::lease::LeasePolicy;
pub(super) use self::{lease::Scarcity, leasing::Leasing};
use super::{
    demand::Demand,
    records::{HeldLease, left_in},
    tiers::remaining,
};
use crate::{
    limit::{Coordination, Hits, Period, Timestamp, algorithm::CounterState},
    store::remote::Target,
};

/// What a policy sees of a counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    /// The limit in use.
    pub(super) target: &'a Target,
    pub(super) mode: Coordination,
    /// The estimate of the shared counters, one for each tier.
    pub(super) estimate: &'a [CounterState],
    pub(super) demand: &'a Demand,
    /// What is held under the limit in use, in order of the ends.
    pub(super) leases: &'a [HeldLease],
    /// The number of instances, this one included.
    pub(super) instances: u64,
    /// The instant until which the store has denied all hits.
    pub(super) denied_until: Timestamp,
    pub(super) last_check_at: Timestamp,
    pub(super) sync_interval: Period,
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

    /// Returns the time until `hits` fit, if no others are taken.
    pub(super) fn wait_for(&self, hits: u64, now: Timestamp) -> Period {
        let waits = self.estimate.iter().zip(&self.target.tiers);
        waits.map(|(state, tier)| state.wait(tier, now, Hits(hits))).max().unwrap_or_default()
    }
}
