//! The store client: the parts between a decision and the shared store that do not depend on local counters.
//!
//! It sends calls ([`calls`]), estimates the store's clock ([`clock`]) and the round trip, opens a circuit breaker
//! for nodes that do not reply ([`breaker`]) and counts the instances ([`heartbeat`]).

mod breaker;
mod calls;
mod clock;
mod fallback;
pub(super) mod heartbeat;
mod instances;
#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use self::{breaker::Breaker, clock::StoreClock, instances::Membership};
pub(super) use self::{calls::RECHECK, instances::InstanceNumbers};
use super::{link::StoreTime, metrics::CoordinationMetrics, settings::CoordinationSettings};
use weir_limit::{Coordination, LimitCheck, OnStoreFailure, Period, Tier, Timestamp};
use weir_store::{
    clock::Clock,
    remote::{Remote, RemoteError, Reply, Target},
};

const INITIAL_ROUND_TRIP: Period = Period::from_millis(1);

/// The modes in the order of fallback: a mode that the store does not support is replaced by the next one.
const MODES: [Coordination; 4] =
    [Coordination::Lease, Coordination::Strict, Coordination::Interval, Coordination::Local];

/// With the store's clock when it carried the command out.
pub(super) type ExchangeOutcome<'a> = Result<(&'a Reply, Timestamp), &'a RemoteError>;

pub(super) struct StoreClient<R> {
    pub(super) remote: R,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) settings: CoordinationSettings,
    /// Apart from what every decision reads, since many decisions write it.
    pub(super) metrics: Box<CoordinationMetrics>,
    pub(super) store_clock: StoreClock,
    breaker: Breaker,
    pub(super) membership: Membership,
    /// A moving average, in nanoseconds. Zero before the first reply.
    pub(super) round_trip: AtomicU64,
    /// The number by which the store knows the counters of this process again.
    pub(super) writer: AtomicU64,
}

// === impl StoreClient ===

impl<R: Remote> StoreClient<R> {
    /// `remote` need not be reachable yet.
    pub(super) fn new(remote: R, clock: Arc<dyn Clock>, settings: CoordinationSettings) -> Self {
        Self {
            membership: Membership::new(settings.heartbeat, clock.now()),
            remote,
            clock,
            settings,
            metrics: Box::default(),
            store_clock: StoreClock::default(),
            breaker: Breaker::default(),
            round_trip: AtomicU64::new(0),
            // of random keys
            writer: AtomicU64::new(RandomState::new().hash_one(())),
        }
    }

    pub(super) fn instances(&self) -> usize {
        self.membership.instances().unwrap_or(1)
    }

    pub(super) fn time(&self) -> StoreTime {
        self.time_at(self.clock.now())
    }

    pub(super) fn time_at(&self, now: Timestamp) -> StoreTime {
        self.store_clock.at(now)
    }

    pub(super) fn local_time_since(&self, now: Timestamp) -> Timestamp {
        self.clock.now().max(now)
    }

    pub(super) fn nearest_mode(&self, target: &Target, requested: Coordination) -> Coordination {
        let mut modes = MODES.into_iter().skip_while(|mode| *mode != requested);
        modes.find(|mode| self.remote.supports(target, *mode)).unwrap_or(Coordination::Local)
    }

    pub(super) fn round_trip(&self) -> Period {
        match self.round_trip.load(Ordering::Relaxed) {
            0 => INITIAL_ROUND_TRIP,
            nanos => Period::from_nanos(nanos),
        }
    }

    pub(super) fn failure_policy(&self, check: &LimitCheck<'_>) -> OnStoreFailure {
        let own = check.rule.declared().and_then(|rule| rule.coordination.on_store_failure);
        own.unwrap_or(self.settings.on_store_failure)
    }

    pub(super) fn requested_mode(&self, check: &LimitCheck<'_>) -> Coordination {
        if check.pool.is_some() && !self.remote.keeps_pools() {
            // each instance has its part
            return Coordination::Local;
        }
        let requested = check.rule.coordination().unwrap_or(self.settings.coordination);
        // a pool has members instead of parts, and the pace of a bucket of a request is not that of the counter
        let is_whole = || check.pool.is_some() || check.tiers().iter().any(Tier::has_any_pace);
        if requested == Coordination::Split && is_whole() { Coordination::Auto } else { requested }
    }

    /// Returns whether the breaker is open for any node.
    pub(super) fn is_unavailable(&self) -> bool {
        self.breaker.is_open()
    }

    pub(super) fn is_unavailable_for(&self, target: &Target, at: Timestamp) -> bool {
        self.breaker.is_open() && self.breaker.is_open_for(self.remote.node(target, at))
    }
}
