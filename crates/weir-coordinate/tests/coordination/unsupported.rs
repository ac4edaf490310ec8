//! Tests with a store that does not support the coordination mode of a rule, so that the nearest supported mode is
//! used.

use std::time::Duration;

use tokio::time::sleep;
use weir_coordinate::simulated::{Network, SimulatedClock, SimulatedStore};
use weir_limit::{Capabilities, Coordination, OverLimitPolicy, Period, Scope, Tier};

use crate::fleet::{EPOCH, Fleet, daily, rule};

/// Starts two instances in front of a store that only adds to single fixed windows and takes from them.
async fn fleet(mode: Coordination, tiers: &[Tier], policy: OverLimitPolicy) -> Fleet {
    let clock = SimulatedClock::new(EPOCH);
    let store = SimulatedStore::with_capabilities(clock.clone(), 7, Capabilities::SingleFixedWindow);
    Fleet::start(2, rule(mode, tiers, policy), Network::default(), clock, store).await
}

fn sliding(requests: u32) -> Tier {
    Tier::sliding_window(requests, Period::from_secs(3_600))
}

impl Fleet {
    /// Sends `times` hits to each instance in turn. Returns how many were admitted.
    async fn hit_all(&self, times: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..times {
            for instance in &self.instances {
                admitted += u64::from(instance.hit().await);
            }
        }
        admitted
    }

    /// Returns how many decisions were local, leased, waited for and made by the fallback; and the failed calls.
    fn decisions(&self) -> [u64; 5] {
        let metrics = self.instances.iter().map(|instance| instance.store.coordination_metrics());
        metrics.fold([0; 5], |sum, m| {
            let counts = [
                m.decisions.local.get(),
                m.decisions.leased.get(),
                m.decisions.waited.get(),
                m.decisions.fallback.get(),
                m.store.failures.get(),
            ];
            std::array::from_fn(|i| sum[i] + counts[i])
        })
    }
}

#[tokio::test(start_paused = true)]
async fn strict_replaces_lease() {
    for policy in [OverLimitPolicy::Ignore, OverLimitPolicy::Count] {
        let fleet = fleet(Coordination::Lease, &[daily(50)], policy).await;
        assert_eq!(fleet.hit_all(100).await, 50);
        assert_eq!(fleet.decisions(), [0, 0, 200, 0, 0], "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn local_replaces_every_mode_for_an_unsupported_algorithm() {
    for mode in [Coordination::Lease, Coordination::Strict, Coordination::Interval] {
        for tiers in [vec![sliding(50)], vec![daily(50), sliding(100)]] {
            let fleet = fleet(mode, &tiers, OverLimitPolicy::Ignore).await;
            assert_eq!(fleet.hit_all(100).await, 100, "{mode:?}: each instance has the whole limit");
            assert_eq!(fleet.decisions(), [200, 0, 0, 0, 0], "{mode:?}");
            let calls = fleet.instances[0].store.coordination_metrics().store.calls.get();
            assert_eq!(calls, 0, "{mode:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_supported_mode_is_used_unchanged() {
    let fleet = fleet(Coordination::Interval, &[daily(100_000)], OverLimitPolicy::Ignore).await;
    assert_eq!(fleet.hit_all(100).await, 200);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fleet.counted(daily(100_000)), 200);
    assert_eq!(fleet.decisions(), [200, 0, 0, 0, 0]);
}

/// The mode is chosen again when the rule's algorithm or its mode changes.
#[tokio::test(start_paused = true)]
async fn a_reload_chooses_the_mode_again() {
    let fleet = fleet(Coordination::Lease, &[daily(50)], OverLimitPolicy::Ignore).await;
    let instance = &fleet.instances[0];
    let strict = [0, 0, 1, 0, 0];
    assert!(instance.hit().await && fleet.decisions() == strict, "{:?}", fleet.decisions());
    for (mode, tier, expected) in [
        (Coordination::Lease, sliding(50), [1, 0, 1, 0, 0]),
        (Coordination::Interval, daily(50), [2, 0, 1, 0, 0]),
        (Coordination::Strict, daily(50), [2, 0, 2, 0, 0]),
    ] {
        let rules = instance.rules_with(rule(mode, &[tier], OverLimitPolicy::Ignore));
        assert!(instance.hit_under(&rules, Scope::Descriptor).await);
        assert_eq!(fleet.decisions(), expected, "{mode:?}");
    }
}

/// Rejected hits of a rule in the format of envoyproxy/ratelimit count, unless the whole request must not count.
#[tokio::test(start_paused = true)]
async fn a_rejected_request_does_not_count_in_the_request_scope() {
    let fleet = fleet(Coordination::Strict, &[daily(50)], OverLimitPolicy::Count).await;
    let instance = &fleet.instances[0];
    let rules = instance.rules_with(rule(Coordination::Strict, &[daily(50)], OverLimitPolicy::Count));
    for i in 0..70 {
        assert_eq!(instance.hit_under(&rules, Scope::Request).await, i < 50);
    }
    assert_eq!(fleet.counted_under(daily(50), OverLimitPolicy::Count), 50);
}
