//! Several instances on one Memcached: the hits that they admit together.

use std::sync::Arc;

use tokio::task::JoinSet;
use weir_coordinate::CoordinationMetrics;
use weir_limit::{Algorithm, Coordination, OverLimitPolicy, Tier};

use crate::support::{Instance, Server, YEAR, settings, until, window};

/// Starts `count` instances that know each other.
async fn fleet(
    server: &Server,
    count: usize,
    tiers: &[Tier],
    policy: OverLimitPolicy,
    mode: Coordination,
) -> Vec<Arc<Instance>> {
    let new = || Arc::new(Instance::new(settings(&[server]), tiers, policy, mode));
    let fleet: Vec<_> = std::iter::repeat_with(new).take(count).collect();
    wait_until_known(&fleet).await;
    fleet
}

async fn wait_until_known(fleet: &[Arc<Instance>]) {
    until("all instances know each other", async || {
        fleet.iter().all(|instance| instance.store.instances() == fleet.len())
    })
    .await;
}

/// Sends `requests` of `hits` each at once, to the instances in turn. Returns how many hits were admitted.
async fn burst(fleet: &[Arc<Instance>], requests: usize, hits: u64) -> u64 {
    let mut all = JoinSet::new();
    for i in 0..requests {
        let instance = Arc::clone(&fleet[i % fleet.len()]);
        all.spawn(async move { instance.send("v", hits).await.over });
    }
    all.join_all().await.into_iter().filter(|over| !over).count() as u64 * hits
}

fn sum(fleet: &[Arc<Instance>], metric: impl Fn(&CoordinationMetrics) -> u64) -> u64 {
    fleet.iter().map(|instance| metric(instance.store.coordination_metrics())).sum()
}

#[tokio::test]
async fn strict_admits_exactly_the_limit() {
    for policy in [OverLimitPolicy::Count, OverLimitPolicy::Ignore] {
        // leases are not supported, and replaced by strict
        for mode in [Coordination::Strict, Coordination::Lease] {
            let server = Server::start();
            let fleet = fleet(&server, 2, &[window(50, YEAR)], policy, mode).await;
            assert_eq!(burst(&fleet, 300, 1).await, 50, "{policy:?} {mode:?}");
            assert_eq!(burst(&fleet, 10, 1).await, 0);
            assert_eq!(sum(&fleet, |metrics| metrics.decisions.fallback.get()), 0);
        }
    }
}

#[tokio::test]
async fn rejected_hits_that_do_not_count_leave_the_rest_to_others() {
    let server = Server::start();
    let (policy, mode) = (OverLimitPolicy::Ignore, Coordination::Strict);
    let fleet = fleet(&server, 2, &[window(10, YEAR)], policy, mode).await;
    assert!(!fleet[0].send("v", 7).await.over);
    for instance in &fleet {
        let decision = instance.send("v", 8).await;
        assert!(decision.over);
        assert_eq!(decision.before.0, 7);
        assert_eq!(instance.send("v", 0).await.remaining, 3, "its own hits are subtracted before that");
    }
    until("the hits of both are subtracted", async || fleet[0].send("v", 0).await.remaining == 3).await;
    assert!(!fleet[1].send("v", 3).await.over);
    assert!(fleet[0].send("v", 1).await.over);
    fleet[0].give_back("v", 2).await;
    until("the hits are given back", async || fleet[1].send("v", 0).await.remaining == 2).await;
    assert!(!fleet[1].send("v", 2).await.over);
    assert!(fleet[1].send("v", 1).await.over);
    // more is admitted by no burst, however large the requests are
    fleet[0].give_back("v", 10).await;
    let admitted = burst(&fleet, 60, 4).await;
    assert!(admitted <= 8, "{admitted}");
}

#[tokio::test]
async fn interval_exceeds_a_limit_by_little_and_counts_every_hit() {
    for policy in [OverLimitPolicy::Count, OverLimitPolicy::Ignore] {
        let server = Server::start();
        let fleet = fleet(&server, 2, &[window(2_000, YEAR)], policy, Coordination::Interval).await;
        let mut admitted = 0;
        until("the limit is used up", async || {
            let now = burst(&fleet, 20, 5).await;
            admitted += now;
            now == 0
        })
        .await;
        let overshoot = admitted.saturating_sub(2_000);
        assert!(admitted >= 2_000 && overshoot <= 200, "{admitted}");
        // nobody has waited for Memcached
        assert_eq!(
            sum(&fleet, |metrics| metrics.decisions.waited.get())
                + sum(&fleet, |metrics| metrics.decisions.fallback.get()),
            0
        );
        for instance in &fleet {
            instance.store.close().await;
        }
        assert_eq!(sum(&fleet, |metrics| metrics.hits.unreported.get()), 0);
    }
}

#[tokio::test]
async fn auto_is_exact_for_small_limits_and_does_not_wait_for_large_ones() {
    let server = Server::start();
    let policy = OverLimitPolicy::Ignore;
    let small = fleet(&server, 2, &[window(20, YEAR)], policy, Coordination::Auto).await;
    assert_eq!(burst(&small, 200, 1).await, 20);
    assert_eq!(sum(&small, |metrics| metrics.decisions.waited.get()), 200);
    for instance in &small {
        instance.store.close().await;
    }
    let large = fleet(&server, 2, &[window(1_000_000, YEAR)], policy, Coordination::Auto).await;
    assert_eq!(burst(&large, 200, 1).await, 200);
    assert_eq!(sum(&large, |metrics| metrics.decisions.waited.get()), 0);
}

#[tokio::test]
async fn instances_are_counted_as_they_come_and_go() {
    let server = Server::start();
    let (policy, mode) = (OverLimitPolicy::Ignore, Coordination::Interval);
    let mut fleet = fleet(&server, 3, &[window(5, YEAR)], policy, mode).await;
    // one leaves, the other is gone
    fleet.pop().expect("there are three").store.close().await;
    drop(fleet.pop());
    wait_until_known(&fleet).await;
}

#[tokio::test]
async fn rules_that_memcached_cannot_count_are_local() {
    let server = Server::start();
    let sliding = Tier { algorithm: Algorithm::SlidingWindow, ..window(5, YEAR) };
    for tiers in [vec![sliding], vec![window(5, YEAR), window(50, YEAR * 2)]] {
        for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval, Coordination::Auto] {
            let instances = [0; 2].map(|_| {
                Arc::new(Instance::new(settings(&[&server]), &tiers, OverLimitPolicy::Ignore, mode))
            });
            assert_eq!(burst(&instances, 40, 1).await, 10, "{mode:?}: each instance has the whole limit");
            assert_eq!(sum(&instances, |metrics| metrics.decisions.local.get()), 40);
        }
    }
}
