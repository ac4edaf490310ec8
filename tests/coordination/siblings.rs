//! Siblings: counters of the same entries whose limits have some of their tiers in common, as after a reload that adds a tier.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir::{
    limit::{Algorithm, Coordination, OverLimitPolicy, Period, RuleSet, Scope, Tier},
    store::simulated::Network,
};

use crate::fleet::{Fleet, daily, rule};

/// Starts instances with a rule of `tier` for any key. Also returns the rules of a reload that adds a tier to it, which is not used up.
async fn reloaded(instances: usize, mode: Coordination, tier: Tier) -> (Fleet, RuleSet) {
    let fleet = Fleet::new(instances, mode, std::slice::from_ref(&tier), Network::default()).await;
    let hourly = Tier { period: Period::from_secs(3_600), ..daily(1_000) };
    let rules = fleet.instances[0].rules_with(rule(mode, &[tier, hourly], OverLimitPolicy::Ignore));
    (fleet, rules)
}

/// Returns what `decide` returns, and how long it takes.
async fn timed<T>(decide: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    (decide.await, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_hit_after_a_reload_waits_for_one_request_of_a_lease() {
    let (fleet, rules) = reloaded(2, Coordination::Lease, daily(100)).await;
    let instance = &fleet.instances[0];
    assert!(instance.hit().await);
    let hit = timed(instance.hit_under(&rules, Scope::Descriptor)).await;
    assert_eq!((hit, instance.failures()), ((true, Network::default().round_trip), (0, 0)));
}

/// Until that reply is there, nobody knows that some of the hits that the store counts are leased and not used.
#[tokio::test(start_paused = true)]
async fn a_lease_is_requested_after_the_reply_to_the_fetch_of_a_sibling() {
    let (fleet, rules) = reloaded(1, Coordination::Lease, daily(100)).await;
    let instance = &fleet.instances[0];
    // neither has a lease then, and both know each other
    assert!(instance.hit_under(&rules, Scope::Descriptor).await && instance.hit().await);
    assert_eq!(fleet.counted(daily(100)), 2);
    let fast = Network { reorders: true, ..Network::default() };
    let slow = Network { round_trip: Duration::from_millis(12), ..fast };
    instance.store.remote().set_network(slow);
    let before_reload = async { instance.hit().await };
    let after_reload = async {
        // the store has carried out the request for the other hit
        sleep(Duration::from_millis(7)).await;
        assert!(fleet.counted(daily(100)) > 3, "nothing is leased ahead");
        instance.store.remote().set_network(fast);
        instance.decide(&rules, Scope::Descriptor, false).await
    };
    let (first, (second, ended)) = tokio::join!(before_reload, timed(after_reload));
    assert_eq!((first, second.over, second.remaining), (true, false, 96));
    assert_eq!((ended, instance.failures()), (slow.round_trip + fast.round_trip, (0, 0)));
}

/// It brings the versions together that hits of another limit have set apart.
#[tokio::test(start_paused = true)]
async fn only_the_first_hit_after_one_of_a_sibling_is_decided_by_the_store() {
    let sliding = Tier { algorithm: Algorithm::SlidingWindow, ..daily(100) };
    let (fleet, rules) = reloaded(2, Coordination::Interval, sliding).await;
    let instance = &fleet.instances[0];
    for _ in 0..3 {
        assert!(instance.hit().await);
        let mut waits = Vec::new();
        for _ in 0..3 {
            let (admitted, wait) = timed(instance.hit_under(&rules, Scope::Descriptor)).await;
            assert!(admitted);
            waits.push(wait);
        }
        assert_eq!(waits, [Network::default().round_trip, Duration::ZERO, Duration::ZERO]);
    }
}
