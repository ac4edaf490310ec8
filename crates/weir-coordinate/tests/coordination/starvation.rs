//! A counter that is flushed early again and again does not delay the flush of the others.

use std::time::Duration;

use tokio::time::sleep;
use weir_coordinate::simulated::{Network, SimulatedClock, SimulatedStore};
use weir_limit::{
    Coordination, Descriptor, Entry, LimitCheck, Matched, OverLimitPolicy, Request, RuleSet, Scope,
};
use weir_store::{Store as _, remote::Target};

use crate::fleet::{EPOCH, Fleet, Instance, daily, rule};

/// Sends one hit for `value`. Returns whether it was admitted.
async fn hit(instance: &Instance, rules: &RuleSet, value: &str) -> bool {
    let entries = [Entry { key: "k", value }];
    let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
    let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    let matched = Matched::new(rules, &request);
    let checks: &[LimitCheck<'_>] = &matched.checks;
    let decisions = instance.store.take(checks, Scope::Descriptor, instance.now()).await;
    !decisions.expect("a coordinated store always decides")[0].over
}

/// Rejected hits of envoyproxy/ratelimit's rules count, so a client that keeps trying makes its counter urgent again
/// with every reply of the store.
#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_trying_delays_no_other_counter() {
    let limit = |requests| rule(Coordination::Interval, &[daily(requests)], OverLimitPolicy::Count);
    let clock = SimulatedClock::new(EPOCH);
    let store = SimulatedStore::new(clock.clone(), 7);
    let fleet = Fleet::start(2, limit(20), Network::default(), clock, store).await;
    let instance = &fleet.instances[0];
    let (small, large) = (instance.rules_with(limit(20)), instance.rules_with(limit(10_000)));
    for _ in 0..30 {
        hit(instance, &small, "over").await;
    }
    // for four seconds, tries of the client that is over its limit every 20 ms, and a hit of another one every 200 ms
    for turn in 0..200 {
        assert!(!hit(instance, &small, "over").await);
        if turn % 10 == 0 {
            assert!(hit(instance, &large, "other").await);
        }
        sleep(Duration::from_millis(20)).await;
    }
    // while the first client goes on trying, all hits of the second one are reported within the longest pause
    for _ in 0..60 {
        hit(instance, &small, "over").await;
        sleep(Duration::from_millis(20)).await;
    }
    let target = Target {
        path: "d|k=other".into(),
        tiers: [daily(10_000)].into_iter().collect(),
        over_limit_policy: OverLimitPolicy::Count,
    };
    assert_eq!(fleet.shared.used(&target, fleet.clock.right()), 20);
}
