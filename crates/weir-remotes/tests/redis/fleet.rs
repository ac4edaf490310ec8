//! Several instances on one Redis, in real time: the hits that they admit together, and their decisions without Redis.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{sleep, sleep_until},
};
use weir_coordinate::{Coordinated, CoordinationMetrics, CoordinationSettings};
use weir_limit::{
    Algorithm, Bucket, Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OnStoreFailure,
    OverLimitPolicy, Period, Refill, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier,
    Timestamp, Values,
};
use weir_remotes::redis::RedisRemote;
use weir_store::{
    Store,
    clock::{Clock, SystemClock},
};

use crate::support::{Server, address, settings, tier, until};

/// The instances that receive hits, in turn: most go to the first one, and some to each.
const SKEWED: [usize; 10] = [0, 1, 0, 2, 0, 1, 0, 3, 0, 4];

/// A clock with an offset in nanoseconds, like the clock of another machine.
struct Skewed(i64);

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(SystemClock.now().as_nanos().saturating_add_signed(self.0))
    }
}

pub(crate) struct Instance {
    pub(crate) store: Coordinated<RedisRemote>,
    clock: Arc<dyn Clock>,
    rules: RuleSet,
}

/// The start and the end of a request, and whether it was admitted.
type Outcome = (Timestamp, Timestamp, bool);

impl Instance {
    pub(crate) fn new(
        server: &Server,
        number: usize,
        tier: &Tier,
        coordination: RuleCoordination,
        skew: i64,
    ) -> Arc<Self> {
        let limit = Limit::Tiers { tiers: [tier.clone()].into(), over_limit_policy: OverLimitPolicy::Ignore };
        let rule = Rule { coordination, ..Rule::new(limit) };
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("fleet", vec![node])], KeyHasher::random());
        let remote = RedisRemote::new(settings(address(server.port()))).expect("no files are needed");
        let clock: Arc<dyn Clock> = Arc::new(Skewed(skew));
        // a generous budget and slow heartbeats, since a busy machine delays both
        let own = CoordinationSettings {
            instance: format!("i{number}"),
            budget: Period::from_secs(10),
            heartbeat: Period::from_millis(500),
            ..CoordinationSettings::default()
        };
        Arc::new(Self { store: Coordinated::new(remote, Arc::clone(&clock), own), clock, rules })
    }

    async fn send(&self) -> bool {
        self.send_for("v").await
    }

    /// Sends a request for the counter of `value`. Returns whether it was admitted.
    pub(crate) async fn send_for(&self, value: &str) -> bool {
        let entries = [Entry { key: "k", value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "fleet", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        !decisions.expect("a coordinated store always decides")[0].over
    }
}

/// Starts five instances that know each other. Their clocks differ by up to half a second. A machine that stops for
/// half a second looks like a Redis that does, and what is decided without Redis is rejected, so that limits hold even
/// then.
async fn fleet(server: &Server, tier: &Tier, mode: Coordination) -> Vec<Arc<Instance>> {
    let coordination = RuleCoordination {
        mode: Some(mode),
        on_store_failure: Some(OnStoreFailure::Deny),
        ..RuleCoordination::default()
    };
    let skews = [0, 250_000_000, -250_000_000, 100_000_000, -30_000_000];
    let new = |(i, skew)| Instance::new(server, i, tier, coordination, skew);
    let fleet: Vec<_> = skews.into_iter().enumerate().map(new).collect();
    until("all instances know each other", async || {
        fleet.iter().all(|instance| instance.store.instances() == 5)
    })
    .await;
    fleet
}

/// Sends `rate` hits a second from the start of a window, for `periods` windows.
async fn offer(fleet: &[Arc<Instance>], tier: &Tier, rate: u64, periods: u32) -> Vec<Outcome> {
    let now = SystemClock.now();
    let to_the_next = now.window_end(tier.period).since(now);
    sleep_until(tokio::time::Instant::now() + to_the_next.into()).await;
    let time = Duration::from(tier.period) * periods;
    let mut requests = JoinSet::new();
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < time {
        sleep(Duration::from_millis(2)).await;
        let due = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX) * rate / 1_000_000;
        while sent < due {
            let turn = usize::try_from(sent).unwrap_or_default() % SKEWED.len();
            let instance = Arc::clone(&fleet[SKEWED[turn]]);
            sent += 1;
            requests.spawn(async move {
                let from = SystemClock.now();
                let admitted = instance.send().await;
                (from, SystemClock.now(), admitted)
            });
        }
    }
    requests.join_all().await
}

pub(crate) fn sum(fleet: &[Arc<Instance>], metric: impl Fn(&CoordinationMetrics) -> u64) -> u64 {
    fleet.iter().map(|instance| metric(instance.store.coordination_metrics())).sum()
}

/// Returns the hits that each window certainly admitted: those of requests that started and ended within it.
fn certain_by_window(outcomes: &[Outcome], period: Period) -> Vec<u64> {
    let mut windows = std::collections::BTreeMap::<Timestamp, u64>::new();
    for (from, to, admitted) in outcomes {
        if *admitted && from.window_end(period) == to.window_end(period) {
            *windows.entry(from.window_end(period)).or_default() += 1;
        }
    }
    windows.into_values().collect()
}

fn admitted(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|(_, _, admitted)| *admitted).count()
}

/// `lease` and `strict` never exceed the limit and use all of it, with clocks that differ.
async fn is_exact(mode: Coordination) {
    let server = Server::start();
    let tier = tier(500, 3, Algorithm::FixedWindow);
    let fleet = fleet(&server, &tier, mode).await;
    let outcomes = offer(&fleet, &tier, 1_000, 2).await;
    for admitted in certain_by_window(&outcomes, tier.period) {
        assert!(admitted <= 500, "{mode:?}: {admitted} of 500 in a window");
    }
    let fallback = sum(&fleet, |metrics| metrics.decisions.fallback.get());
    assert!(fallback < outcomes.len() as u64 / 2, "{mode:?}: {fallback} of {} without redis", outcomes.len());
    // three times the limit is offered, even if the machine is slow
    if outcomes.len() >= 2 * 1_500 && fallback == 0 {
        assert!(admitted(&outcomes) >= 990, "{mode:?}: {} of 1000", admitted(&outcomes));
    }
    if mode == Coordination::Lease {
        let calls = sum(&fleet, |metrics| metrics.store.calls.get());
        assert!(calls * 10 < outcomes.len() as u64, "{calls} calls for {} decisions", outcomes.len());
    }
}

#[tokio::test]
async fn lease_is_exact_with_five_instances() {
    is_exact(Coordination::Lease).await;
}

#[tokio::test]
async fn strict_is_exact_with_five_instances() {
    is_exact(Coordination::Strict).await;
}

/// The overshoot is at most the hits of one sync interval and the time of one sync.
#[tokio::test]
async fn five_instances_overshoot_by_no_more_than_the_hits_between_two_syncs() {
    let server = Server::start();
    let tier = tier(500, 3, Algorithm::FixedWindow);
    let fleet = fleet(&server, &tier, Coordination::Interval).await;
    let outcomes = offer(&fleet, &tier, 1_000, 2).await;
    for admitted in certain_by_window(&outcomes, tier.period) {
        // 100 ms, and half a second for a machine that is busy with other tests
        assert!(admitted <= 500 + 600, "{admitted} of 500 in a window");
    }
    if outcomes.len() >= 2 * 1_500 {
        assert!(admitted(&outcomes) >= 1_000, "it admits the whole limit");
    }
    assert_eq!(sum(&fleet, |metrics| metrics.decisions.waited.get()), 0);
}

#[tokio::test]
async fn a_sliding_window_and_a_bucket_hold_in_every_interval() {
    let bucket = Bucket { burst: 50, refill: Refill::Continuous, strict: false };
    for algorithm in [Algorithm::SlidingWindow, Algorithm::TokenBucket(bucket)] {
        for mode in [Coordination::Lease, Coordination::Strict] {
            let server = Server::start();
            let tier = tier(200, 1, algorithm);
            let fleet = fleet(&server, &tier, mode).await;
            let outcomes = offer(&fleet, &tier, 800, 2).await;
            assert!(admitted(&outcomes) > 0, "{mode:?} {algorithm:?}");
            // the time from the end of one request to the start of another is no longer than the time between their
            // decisions
            let mut passed: Vec<_> = outcomes.iter().filter(|(_, _, admitted)| *admitted).collect();
            passed.sort_unstable_by_key(|(from, _, _)| *from);
            for (first, (begin, _, _)) in passed.iter().enumerate() {
                let within =
                    passed[first..].iter().filter(|(_, to, _)| to.since(*begin) < tier.period).count();
                let bound = match algorithm {
                    Algorithm::SlidingWindow => 200,
                    // the burst, the inflow of a period, and for a lease the inflow while it may be held
                    _ => 50 + 200 + if mode == Coordination::Lease { 10 } else { 0 },
                };
                assert!(
                    within <= bound,
                    "{mode:?} {algorithm:?}: {within} within a period, but at most {bound} are allowed"
                );
            }
        }
    }
}

#[tokio::test]
async fn an_instance_that_stops_returns_its_leases_and_deregisters() {
    let server = Server::start();
    let tier = tier(1_000, 3_600, Algorithm::FixedWindow);
    let fleet = fleet(&server, &tier, Coordination::Lease).await;
    for _ in 0..20 {
        assert!(fleet[0].send().await);
    }
    fleet[0].store.close().await;
    until("the others know of four instances", async || {
        fleet[1..].iter().all(|instance| instance.store.instances() == 4)
    })
    .await;
    // all unused hits are available to the others
    let mut admitted = 0;
    while fleet[1].send().await {
        admitted += 1;
    }
    assert_eq!(admitted, 980);
}

#[tokio::test]
async fn an_instance_that_dies_is_no_longer_registered() {
    let server = Server::start();
    let tier = tier(1_000, 3_600, Algorithm::FixedWindow);
    let mut fleet = fleet(&server, &tier, Coordination::Lease).await;
    drop(fleet.pop());
    until("the others know of four instances", async || {
        fleet.iter().all(|instance| instance.store.instances() == 4)
    })
    .await;
}

/// Each mode decides by `on_store_failure` from a start without Redis, and uses Redis when it starts.
#[tokio::test]
async fn without_redis_each_mode_uses_on_store_failure_and_reports_its_hits_once() {
    for mode in [Coordination::Interval, Coordination::Lease, Coordination::Strict] {
        let mut server = Server::start();
        server.kill();
        let tier = tier(100, 3_600, Algorithm::FixedWindow);
        let coordination = RuleCoordination { mode: Some(mode), ..RuleCoordination::default() };
        let instance = Instance::new(&server, 0, &tier, coordination, 0);
        for _ in 0..30 {
            assert!(instance.send().await, "{mode:?}");
        }
        // in `interval` mode an instance decides by its own count anyway
        let fallback = sum(std::slice::from_ref(&instance), |metrics| metrics.decisions.fallback.get());
        assert!(fallback > 0 || mode == Coordination::Interval, "{mode:?}");
        server.restart();
        until("the store is available", async || !instance.store.is_store_unavailable()).await;
        until("the hits are reported", async || {
            let keys: Vec<String> = server.send(&["KEYS", "*fleet*"]);
            let counts: Vec<Option<i64>> = keys.iter().map(|key| server.send(&["GET", key])).collect();
            counts.iter().flatten().sum::<i64>() == 30
        })
        .await;
        let mut admitted = 0;
        while instance.send().await {
            admitted += 1;
        }
        assert_eq!(admitted, 70, "{mode:?}: the hits admitted without redis count");
    }
}

#[tokio::test]
async fn a_frozen_redis_is_given_up_and_used_again_when_it_replies() {
    let server = Server::start();
    let tier = tier(1_000_000, 3_600, Algorithm::FixedWindow);
    let coordination = RuleCoordination {
        mode: Some(Coordination::Strict),
        on_store_failure: Some(OnStoreFailure::Allow),
        ..RuleCoordination::default()
    };
    let instance = Instance::new(&server, 0, &tier, coordination, 0);
    until("redis is connected", async || {
        !instance.store.is_store_unavailable() && instance.store.remote().state().is_connected()
    })
    .await;
    assert!(instance.send().await);
    server.signal("STOP");
    until("the store is unavailable", async || {
        assert!(instance.send().await, "`on_store_failure: allow` admits it");
        instance.store.is_store_unavailable()
    })
    .await;
    server.signal("CONT");
    until("the store is available again", async || {
        instance.send().await;
        !instance.store.is_store_unavailable()
    })
    .await;
}
