//! `auto`: exact for a limit that is small against the number of instances, without a wait for any other.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use weir_coordinate::{
    CoordinationMetrics,
    simulated::{Network, SimulatedClock, SimulatedStore},
};
use weir_limit::{
    Algorithm, Bucket, Capabilities, Coordination, OverLimitPolicy, Period, Refill, Scope, Tier,
};

use crate::fleet::{EPOCH, Fleet, Instance, daily, rule};

/// The time until all instances have forgotten a larger number of instances, and some of their heartbeats.
const FORGOTTEN: Duration = Duration::from_secs(14);

const BUCKET: Algorithm =
    Algorithm::TokenBucket(Bucket { burst: 0, refill: Refill::Continuous, strict: false });

/// Returns `algorithm`; a bucket holds `limit`.
fn of(algorithm: Algorithm, limit: u32) -> Algorithm {
    match algorithm {
        Algorithm::TokenBucket(bucket) => Algorithm::TokenBucket(Bucket { burst: limit, ..bucket }),
        other => other,
    }
}

async fn fleet(instances: usize, tier: Tier) -> Fleet {
    Fleet::new(instances, Coordination::Auto, &[tier], Network::default()).await
}

fn sum(instances: &[Arc<Instance>], metric: impl Fn(&CoordinationMetrics) -> u64) -> u64 {
    instances.iter().map(|instance| metric(instance.store.coordination_metrics())).sum()
}

/// Sends `times` requests to each instance at once. Returns how many were admitted.
async fn burst(instances: &[Arc<Instance>], times: usize) -> u64 {
    let mut requests = JoinSet::new();
    for _ in 0..times {
        for instance in instances {
            let instance = Arc::clone(instance);
            requests.spawn(async move { instance.hit().await });
        }
    }
    requests.join_all().await.into_iter().map(u64::from).sum()
}

#[tokio::test(start_paused = true)]
async fn a_burst_on_an_unknown_counter_of_a_small_limit_admits_the_limit() {
    for (instances, limit) in [(2, 3), (2, 99), (10, 3), (10, 499)] {
        let fleet = fleet(instances, daily(limit)).await;
        assert_eq!(burst(&fleet.instances, limit as usize).await, u64::from(limit), "{instances} instances");
    }
}

/// All requests arrive within a round trip, when no instance can know of the others.
#[tokio::test(start_paused = true)]
async fn a_burst_on_an_unknown_counter_of_a_large_limit_overshoots_by_a_tenth_at_most() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, BUCKET] {
        for (instances, limit, load) in
            [(2, 100, 2), (3, 150, 10), (3, 3_000, 2), (10, 500, 10), (24, 1_200, 5)]
        {
            let fleet = fleet(instances, Tier { algorithm: of(algorithm, limit), ..daily(limit) }).await;
            let admitted = burst(&fleet.instances, (limit as usize * load) / instances).await;
            let limit = u64::from(limit);
            assert!(
                admitted <= limit + limit / 10,
                "{admitted} of {limit}, {instances} instances, {algorithm:?}"
            );
            assert!(
                admitted * 10 >= limit * 9,
                "{admitted} of {limit}, {instances} instances, {algorithm:?}"
            );
            assert_eq!(sum(&fleet.instances, |metrics| metrics.decisions.fallback.get()), 0);
        }
    }
}

/// The next one is not expected because there was one before. A decision about it waits for two replies.
#[tokio::test(start_paused = true)]
async fn a_burst_in_each_period_overshoots_by_a_tenth_at_most() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, BUCKET] {
        for (instances, limit, load) in [(3, 300, 3), (10, 1_000, 5)] {
            for round_trip in [2, 7] {
                let round_trip = Duration::from_millis(round_trip);
                let network = Network { round_trip, jitter: Duration::ZERO, ..Network::default() };
                let period = Period::from_secs(10);
                let tier = Tier { algorithm: of(algorithm, limit), period, ..daily(limit) };
                let fleet = Fleet::new(instances, Coordination::Auto, &[tier], network).await;
                for turn in 0..5 {
                    let now = fleet.clock.right();
                    // each a little more than a period after the one before
                    let early = Duration::from_secs(1 + turn);
                    sleep(Duration::from(now.window_end(period).since(now)) + early).await;
                    let admitted = burst(&fleet.instances, (limit as usize * load) / instances).await;
                    assert!(
                        (limit * 9 / 10..=limit * 11 / 10).contains(&u32::try_from(admitted).expect("few")),
                        "{admitted} of {limit} in turn {turn}, {instances} instances, {algorithm:?}, {round_trip:?}"
                    );
                }
                assert_eq!(sum(&fleet.instances, |metrics| metrics.decisions.fallback.get()), 0);
            }
        }
    }
}

/// Hits that arrive at once predict no more: what an instance leased ahead would be missing where most of them arrive.
#[tokio::test(start_paused = true)]
async fn an_uneven_burst_of_exactly_the_limit_is_admitted() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, BUCKET] {
        for limit in [150, 90] {
            let fleet = fleet(3, Tier { algorithm: of(algorithm, limit), ..daily(limit) }).await;
            let mut requests = JoinSet::new();
            for i in 0..limit as usize {
                // three times as many for the first instance as for the last
                let instance = Arc::clone(&fleet.instances[[0, 1, 0, 1, 0, 2][i % 6]]);
                requests.spawn(async move { instance.hit().await });
            }
            let admitted = requests.join_all().await.into_iter().filter(|admitted| *admitted).count();
            assert_eq!(admitted, limit as usize, "{algorithm:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_burst_no_decision_waits() {
    let fleet = fleet(3, daily(3_000)).await;
    assert_eq!(burst(&fleet.instances, 500).await, 1_500);
    assert_eq!(sum(&fleet.instances, |metrics| metrics.switches.bursts.get()), 3);
    sleep(Duration::from_secs(12)).await;
    let waited = sum(&fleet.instances, |metrics| metrics.decisions.waited.get());
    assert!(waited > 0);
    let outcomes = fleet.offer(200, Duration::from_secs(3), &[1, 1, 1]).await;
    assert!(outcomes.iter().all(|outcome| outcome.admitted && outcome.waited == Duration::ZERO));
    assert_eq!(sum(&fleet.instances, |metrics| metrics.decisions.waited.get()), waited);
}

/// Also if the limit is only a little too large for `lease`.
#[tokio::test(start_paused = true)]
async fn after_a_burst_a_counter_is_what_it_was_before() {
    for limit in [120, 200] {
        let fleet = fleet(2, daily(limit)).await;
        assert_eq!(burst(&fleet.instances, 15).await, 30);
        assert_eq!(sum(&fleet.instances, |metrics| metrics.switches.bursts.get()), 2, "{limit}");
        sleep(Duration::from_secs(12)).await;
        fleet.offer(20, Duration::from_secs(1), &[1, 1]).await;
        let by_lease = || {
            sum(&fleet.instances, |metrics| metrics.decisions.waited.get())
                + sum(&fleet.instances, |metrics| metrics.decisions.leased.get())
        };
        let before = by_lease();
        let outcomes = fleet.offer(20, Duration::from_secs(2), &[1, 1]).await;
        assert!(outcomes.iter().all(|outcome| outcome.admitted && outcome.waited == Duration::ZERO));
        assert_eq!(by_lease(), before, "{limit}");
    }
}

/// The burst is detected again.
#[tokio::test(start_paused = true)]
async fn a_reload_in_a_burst_leaves_it_within_a_tenth() {
    let fleet = fleet(10, daily(1_000)).await;
    let mut requests = JoinSet::new();
    let changed = rule(Coordination::Auto, &[daily(1_200)], OverLimitPolicy::Ignore);
    for instance in &fleet.instances {
        for i in 0..500 {
            let (instance, changed) = (Arc::clone(instance), instance.rules_with(changed.clone()));
            requests.spawn(async move {
                if i < 50 {
                    instance.hit().await
                } else {
                    sleep(Duration::from_millis(1)).await;
                    instance.hit_under(&changed, Scope::Descriptor).await
                }
            });
        }
    }
    let admitted = requests.join_all().await.into_iter().filter(|admitted| *admitted).count();
    assert!((1_080..=1_320).contains(&admitted), "{admitted}");
}

#[tokio::test(start_paused = true)]
async fn no_decision_about_a_large_limit_waits() {
    let fleet = fleet(2, daily(100)).await;
    let outcomes = fleet.offer(20, Duration::from_secs(20), &[1, 1]).await;
    assert!(outcomes.iter().all(|outcome| outcome.waited == Duration::ZERO));
    let admitted = outcomes.iter().filter(|outcome| outcome.admitted).count();
    assert!((100..=102).contains(&admitted), "{admitted}");
    assert_eq!(sum(&fleet.instances, |metrics| metrics.decisions.waited.get()), 0);
}

/// Sends `rate` hits a second to `instances` in turn, for `time`. Returns how many were admitted.
async fn offer(instances: &[Arc<Instance>], rate: u32, time: Duration) -> u64 {
    let mut requests = JoinSet::new();
    let begun = tokio::time::Instant::now();
    let mut turn = 0;
    while begun.elapsed() < time {
        sleep(Duration::from_secs(1) / rate).await;
        let instance = Arc::clone(&instances[turn % instances.len()]);
        requests.spawn(async move { instance.hit().await });
        turn += 1;
    }
    requests.join_all().await.into_iter().map(u64::from).sum()
}

/// Three instances join two and leave again, while all of them receive requests.
#[tokio::test(start_paused = true)]
async fn the_mode_follows_the_number_of_instances_and_every_hit_counts_once() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let tier = Tier { algorithm, ..daily(20_000) };
        // exact with more than 4 instances
        let small = Tier { requests: 200, ..tier.clone() };
        let per_minute = Tier { period: Period::from_secs(60), ..small.clone() };
        for tier in [small, per_minute] {
            let mut fleet = fleet(2, tier.clone()).await;
            let mut admitted = offer(&fleet.instances, 20, Duration::from_secs(3)).await;
            assert_eq!(sum(&fleet.instances, |metrics| metrics.decisions.leased.get()), 0);
            fleet
                .join(3, rule(Coordination::Auto, std::slice::from_ref(&tier), OverLimitPolicy::Ignore))
                .await;
            admitted += offer(&fleet.instances, 10, Duration::from_secs(4)).await;
            assert_eq!(sum(&fleet.instances[..2], |metrics| metrics.switches.to_lease.get()), 2, "{tier:?}");
            let exact = sum(&fleet.instances, |metrics| metrics.decisions.leased.get())
                + sum(&fleet.instances, |metrics| metrics.decisions.waited.get());
            assert!(exact > 10, "{tier:?}");
            for left in fleet.instances.drain(2..) {
                left.store.close().await;
            }
            let waited = sum(&fleet.instances, |metrics| metrics.decisions.waited.get());
            sleep(Duration::from_secs(2)).await;
            admitted += offer(&fleet.instances, 4, FORGOTTEN).await;
            assert_eq!(sum(&fleet.instances, |metrics| metrics.switches.to_interval.get()), 2, "{tier:?}");
            let waited_since = sum(&fleet.instances, |metrics| metrics.decisions.waited.get()) - waited;
            admitted += offer(&fleet.instances, 4, Duration::from_secs(2)).await;
            assert_eq!(
                sum(&fleet.instances, |metrics| metrics.decisions.waited.get()) - waited,
                waited_since
            );
            for instance in &fleet.instances {
                instance.store.close().await;
                let metrics = instance.store.coordination_metrics();
                assert_eq!((metrics.hits.unreported.get(), metrics.hits.stranded.get()), (0, 0), "{tier:?}");
            }
            if tier.period == daily(1).period {
                assert_eq!(fleet.counted(tier.clone()), admitted, "{tier:?}");
            }
            assert!(admitted <= 202, "{admitted} {tier:?}");
        }
    }
}

/// Until the first heartbeat is replied to, an instance assumes many others.
#[tokio::test(start_paused = true)]
async fn an_instance_that_does_not_know_the_others_yet_is_exact() {
    let clock = SimulatedClock::new(EPOCH);
    let shared = SimulatedStore::new(clock.clone(), 7);
    let rule = rule(Coordination::Auto, &[daily(100)], OverLimitPolicy::Ignore);
    let mut fleet = Fleet { clock, shared, instances: Vec::new() };
    fleet.add(2, &rule, Network { round_trip: Duration::from_millis(4), ..Network::default() });
    assert_eq!(burst(&fleet.instances, 100).await, 100);
    assert_eq!(sum(&fleet.instances, |metrics| metrics.decisions.fallback.get()), 0);
}

#[tokio::test(start_paused = true)]
async fn auto_uses_the_modes_that_the_store_supports() {
    for (limit, expected) in [(50, [0, 200]), (100, [200, 0])] {
        let clock = SimulatedClock::new(EPOCH);
        let shared = SimulatedStore::with_capabilities(clock.clone(), 7, Capabilities::SingleFixedWindow);
        let rule = rule(Coordination::Auto, &[daily(limit)], OverLimitPolicy::Ignore);
        let fleet = Fleet::start(2, rule, Network::default(), clock, shared).await;
        for _ in 0..100 {
            burst(&fleet.instances, 1).await;
            sleep(Duration::from_millis(20)).await;
        }
        let counts = [
            sum(&fleet.instances, |m| m.decisions.local.get()),
            sum(&fleet.instances, |m| m.decisions.waited.get()),
        ];
        assert_eq!(counts, expected, "limit {limit}");
    }
}
