//! Helpers for tests of the simulated store with a paused clock.

use std::{sync::Arc, time::Duration};

use tokio::time::advance;
use weir_coordinate::simulated::{SimulatedClock, SimulatedStore};
use weir_limit::{Algorithm, Bucket, OverLimitPolicy, Period, Refill, Tier, Timestamp};
use weir_store::{
    clock::Clock as _,
    remote::{Reply, Report, Target},
};

use crate::ops::Op;

/// A multiple of every period of the tests.
pub(crate) const START: Timestamp = Timestamp::from_secs(1_700_006_400);

pub(crate) fn store() -> SimulatedStore {
    SimulatedStore::new(SimulatedClock::new(START), 1)
}

pub(crate) fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
    Tier::new(requests, Period::from_secs(seconds), algorithm)
}

pub(crate) fn bucket(burst: u32, strict: bool) -> Algorithm {
    Algorithm::TokenBucket(Bucket { burst, refill: Refill::Continuous, strict })
}

pub(crate) fn target(tiers: Vec<Tier>, over_limit_policy: OverLimitPolicy) -> Arc<Target> {
    Arc::new(Target { path: "shop_tenant_acme_".into(), tiers: tiers.into(), over_limit_policy })
}

/// A target, and the store that counts it.
pub(crate) struct CountedTarget {
    pub(crate) store: SimulatedStore,
    pub(crate) target: Arc<Target>,
}

impl CountedTarget {
    pub(crate) fn new(tiers: Vec<Tier>, over_limit_policy: OverLimitPolicy) -> Self {
        Self { store: store(), target: target(tiers, over_limit_policy) }
    }

    /// Carries out `op` on hits of the instant `at`.
    #[expect(clippy::needless_pass_by_value, reason = "tests make each for one call")]
    pub(crate) fn at(&self, at: Timestamp, op: Op) -> Reply {
        op.counted(self.store.execute(&op.command(&self.target, at)))
    }

    pub(crate) fn now(&self, op: Op) -> Reply {
        self.at(self.store.clock().now(), op)
    }

    pub(crate) fn add(&self, hits: i64) -> Reply {
        let report = Report::of(self.store.clock().now(), hits);
        self.now(Op::Add { report })
    }

    pub(crate) fn take(&self, hits: u64) -> u64 {
        self.now(Op::Take { hits }).granted
    }

    pub(crate) fn grant(&self, least: u64, want: u64, hold_millis: u64) -> u64 {
        self.now(Op::Grant { report: None, least, want, hold: Period::from_millis(hold_millis) }).granted
    }

    /// Returns the hits that the tier's counter holds at the time of the store's clock.
    pub(crate) fn used(&self, tier: usize) -> u64 {
        let now = self.store.clock().now();
        self.now(Op::Take { hits: 0 }).counters[tier]
            .probe(&self.target.tiers[tier], now, weir_limit::Hits(0))
            .used
            .0
    }
}

/// Advances the paused clock.
pub(crate) async fn pass(millis: u64) {
    advance(Duration::from_millis(millis)).await;
}
