//! Tests limits that come with the request: any algorithm and several tiers, on every store.

use std::{sync::Arc, time::Duration};

use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedStore},
};
use weir_limit::{
    Algorithm, Bucket, Code, Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, OverLimitPolicy,
    Period, Refill, Request, Rule, RuleNode, RuleSet, RuntimeLimit, Tier, Timestamp, Unit, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{MemoryStore, Store, clock::Clock as _};

const EPOCH: Timestamp = Timestamp::from_secs(1_699_999_200);

/// Returns a limit of three requests at once, and one more per minute.
fn token_bucket() -> RuntimeLimit {
    let bucket = Bucket { burst: 3, refill: Refill::Continuous, strict: false };
    limit(&[tier(1, 60, Algorithm::TokenBucket(bucket))])
}

/// Returns a limit of two requests in any 10 seconds and three in any minute.
fn two_sliding_windows() -> RuntimeLimit {
    limit(&[tier(2, 10, Algorithm::SlidingWindow), tier(3, 60, Algorithm::SlidingWindow)])
}

fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
    Tier::new(requests, Period::from_secs(seconds), algorithm)
}

fn limit(tiers: &[Tier]) -> RuntimeLimit {
    RuntimeLimit::new(tiers.into(), OverLimitPolicy::Ignore).expect("a valid limit")
}

/// Creates a limiter on `store`, whose only rule admits nothing.
fn limiter<S: Store>(store: S) -> Limiter<S> {
    let limiter = Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default());
    let closed = Rule::new(Limit::fixed_window(0, Period::from_secs(60)));
    let node = RuleNode { rule: Some(closed), ..RuleNode::new("k", Values::Any) };
    let domain = Domain::new("d", vec![node]);
    limiter.load(RuleSet::new(&[domain], KeyHasher::random()));
    limiter
}

/// Takes one hit of `key`; returns whether it was admitted, and the remaining requests.
async fn take<S: Store>(
    limiter: &Limiter<S>,
    key: &str,
    limit: Option<&RuntimeLimit>,
    now: Timestamp,
) -> (bool, u32) {
    let descriptor = Descriptor {
        entries: [Entry { key, value: "v" }].into_iter().collect(),
        limit: limit.cloned().map(Box::new),
        ..Descriptor::default()
    };
    let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    let outcome =
        |verdict: &weir_limit::Verdict<'_>| (verdict.code == Code::Ok, verdict.statuses[0].remaining);
    limiter.decide(&request, now, outcome).await.expect("the store decides")
}

/// Takes hits of `key` until one is rejected; returns how many were admitted.
async fn drain<S: Store>(
    limiter: &Limiter<S>,
    key: &str,
    limit: &RuntimeLimit,
    clock: &SimulatedClock,
) -> u32 {
    let mut admitted = 0;
    while take(limiter, key, Some(limit), clock.now()).await.0 {
        admitted += 1;
        assert!(admitted < 100, "{limit:?} admits everything");
    }
    admitted
}

/// Checks both limits over 100 seconds, on the store `name`.
async fn check<S: Store>(limiter: &Limiter<S>, clock: &SimulatedClock, name: &str) {
    let (bucket, windows) = (token_bucket(), two_sliding_windows());
    assert_eq!(drain(limiter, "bucket", &bucket, clock).await, 3, "{name}: the burst");
    assert_eq!(drain(limiter, "windows", &windows, clock).await, 2, "{name}: the first tier");
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(drain(limiter, "windows", &windows, clock).await, 1, "{name}: the second tier");
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(drain(limiter, "bucket", &bucket, clock).await, 1, "{name}: one token is refilled");
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!(drain(limiter, "windows", &windows, clock).await, 2, "{name}: both tiers are free again");
}

#[tokio::test(start_paused = true)]
async fn the_memory_store_decides_any_runtime_limit() {
    let clock = SimulatedClock::new(EPOCH);
    check(&limiter(MemoryStore::new(100)), &clock, "memory").await;
}

#[tokio::test(start_paused = true)]
async fn every_coordination_mode_decides_any_runtime_limit() {
    for coordination in Coordination::ALL {
        let clock = SimulatedClock::new(EPOCH);
        let shared = SimulatedStore::new(clock.clone(), 1);
        let settings = CoordinationSettings { coordination, ..CoordinationSettings::default() };
        let store = Coordinated::new(shared.connect(Network::default()), Arc::new(clock.clone()), settings);
        // under `split` an instance has a part of a bucket, or of a sliding window, the time that it fills, or lasts,
        // after it has started
        tokio::time::sleep(Duration::from_mins(5)).await;
        check(&limiter(store), &clock, coordination.name()).await;
    }
}

#[tokio::test]
async fn a_runtime_limit_replaces_the_configured_one_and_shares_its_counter() {
    let limiter = limiter(MemoryStore::new(100));
    assert_eq!(take(&limiter, "k", None, EPOCH).await, (false, 0), "the rule admits nothing");
    let per_unit = RuntimeLimit::per_unit(3, Unit::Minute);
    assert_eq!(take(&limiter, "k", Some(&per_unit), EPOCH).await, (true, 1), "the rejected hit counted");
    let sliding = limit(&[tier(3, 60, Algorithm::SlidingWindow)]);
    assert_eq!(
        take(&limiter, "k", Some(&sliding), EPOCH).await,
        (true, 2),
        "another algorithm uses another counter"
    );
}

/// Limits that requests bring, of billions of requests a year, are dear to lose. They evict each other, and not the
/// counters of rules, also if what both count is pending.
#[tokio::test(start_paused = true)]
async fn limits_of_requests_evict_no_counter_of_a_rule() {
    for coordination in Coordination::ALL {
        let clock = SimulatedClock::new(EPOCH);
        let shared = SimulatedStore::new(clock.clone(), 1);
        let settings =
            CoordinationSettings { coordination, max_counters: 100, ..CoordinationSettings::default() };
        let store = Coordinated::new(shared.connect(Network::default()), Arc::new(clock.clone()), settings);
        let limiter = Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default());
        let nodes = (0..80).map(|i| RuleNode {
            rule: Some(Rule::new(Limit::fixed_window(5, Period::from_secs(60)))),
            ..RuleNode::new(&format!("rule {i}"), Values::Any)
        });
        limiter.load(RuleSet::new(&[Domain::new("d", nodes.collect())], KeyHasher::random()));
        // under `split` an instance has its part some time after it has started
        tokio::time::sleep(Duration::from_mins(5)).await;
        let year = RuntimeLimit::per_unit(u32::MAX, Unit::Year);
        let mut admitted = [0; 80];
        for round in 0..2 {
            for (i, admitted) in admitted.iter_mut().enumerate() {
                for _ in 0..5 {
                    let taken = take(&limiter, &format!("rule {i}"), None, clock.now()).await.0;
                    *admitted += u32::from(taken);
                }
            }
            for i in 0..300 {
                take(&limiter, &format!("year {round} {i}"), Some(&year), clock.now()).await;
            }
        }
        assert_eq!(admitted, [5; 80], "{}", coordination.name());
    }
}
