//! A counter is evicted while its call is in flight, and another one takes its place.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep};
use weir_coordinate::{
    Coordinated, CoordinationMetrics, CoordinationSettings,
    simulated::{Condition, Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, KeyHasher, Matched, OverLimitPolicy, Request, RuleNode, RuleSet,
    Scope, Values,
};
use weir_store::{Store as _, clock::Clock as _, remote::Target};

use crate::fleet::{EPOCH, daily, rule};

/// An instance that has room for a single counter.
struct Cramped {
    clock: SimulatedClock,
    shared: SimulatedStore,
    store: Coordinated<SimulatedRemote>,
    rules: RuleSet,
}

impl Cramped {
    /// Starts it with a limit of 1,000 a day for each value of a key. A message to the store takes 50 ms, and the reply
    /// as long.
    async fn new(mode: Coordination) -> Self {
        let clock = SimulatedClock::new(EPOCH);
        let shared = SimulatedStore::new(clock.clone(), 7);
        let network = Network {
            round_trip: Duration::from_millis(100),
            timeout: Duration::from_secs(10),
            ..Network::default()
        };
        let settings = CoordinationSettings {
            coordination: mode,
            max_counters: 1,
            budget: weir_limit::Period::from_secs(1),
            ..CoordinationSettings::default()
        };
        let store = Coordinated::new(shared.connect(network), Arc::new(clock.clone()), settings);
        let rule = rule(mode, &[daily(1_000)], OverLimitPolicy::Ignore);
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random());
        sleep(Duration::from_millis(2_500)).await;
        Self { clock, shared, store, rules }
    }

    /// Takes `hits` for `value`, or gives them back. Returns whether they were admitted.
    async fn ask(&self, value: &str, hits: u64, gives_back: bool) -> bool {
        let descriptor = Descriptor {
            entries: [Entry { key: "k", value }].into_iter().collect(),
            hits: Some(hits),
            refund: gives_back,
            ..Descriptor::default()
        };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        !decisions.expect("a coordinated store always decides")[0].over
    }

    async fn hit(&self, value: &str, hits: u64) {
        assert!(self.ask(value, hits, false).await);
    }

    /// Returns the hits of `value` that the store counts.
    fn counted(&self, value: &str) -> u64 {
        let target = Target {
            path: format!("d|k={value}").into(),
            tiers: [daily(1_000)].into_iter().collect(),
            over_limit_policy: OverLimitPolicy::Ignore,
        };
        self.shared.used(&target, self.clock.now())
    }

    fn metrics(&self) -> &CoordinationMetrics {
        self.store.coordination_metrics()
    }

    /// Waits until the store is `condition` for the commands that arrive from now on.
    async fn set_after(&self, millis: u64, condition: Condition) {
        sleep(Duration::from_millis(millis)).await;
        self.shared.set(condition);
    }
}

/// An eviction is counted, whatever becomes of the counter's hits.
#[tokio::test(start_paused = true)]
async fn every_eviction_is_counted_by_what_becomes_of_its_hits() {
    let cramped = Cramped::new(Coordination::Interval).await;
    cramped.hit("a", 1).await;
    // its report is acknowledged by then
    sleep(Duration::from_secs(3)).await;
    cramped.hit("b", 1).await;
    let counts =
        || (cramped.metrics().evictions.evicted_reported.get(), cramped.metrics().evictions.evicted.get());
    assert_eq!(counts(), (1, 0));
    cramped.hit("c", 1).await;
    assert_eq!((counts(), cramped.store.counters()), ((1, 1), 1));
}

/// The try is on its way, so the hit is not pending, and nobody will be told what becomes of it.
#[tokio::test(start_paused = true)]
async fn a_hit_that_the_fallback_has_admitted_for_a_try_on_its_way_is_of_unknown_outcome_after_an_eviction() {
    let cramped = Cramped::new(Coordination::Strict).await;
    cramped.shared.set(Condition::Frozen);
    cramped.hit("a", 3).await;
    let lost = || (cramped.metrics().hits.delivery_unknown.get(), cramped.metrics().evictions.evicted.get());
    assert_eq!((lost(), cramped.metrics().decisions.fallback.get()), ((0, 0), 1));
    cramped.hit("b", 1).await;
    assert_eq!((lost(), cramped.store.counters()), ((3, 1), 1));
    cramped.shared.set(Condition::Up);
    sleep(Duration::from_secs(3)).await;
    assert!(cramped.counted("a") <= 3);
    assert_eq!((lost().0, cramped.counted("b")), (3, 1));
}

/// The reply to a counter's report must not acknowledge what the next counter of the same key has sent since: the store
/// rejects that.
#[tokio::test(start_paused = true)]
async fn a_late_reply_does_not_touch_the_counter_that_has_taken_the_place_of_another() {
    let cramped = Cramped::new(Coordination::Interval).await;
    cramped.hit("a", 500).await;
    sleep(Duration::from_millis(20)).await;
    // evicts the counter, whose report is on its way; a new counter then takes its place, and its report follows
    cramped.hit("b", 1).await;
    cramped.hit("a", 300).await;
    // the first report has arrived by then, and the second one has not
    cramped.set_after(40, Condition::Rejecting).await;
    assert_eq!((cramped.counted("a"), cramped.store.counters()), (500, 1));
    // the reply to the first report has arrived, and the second one was rejected
    cramped.set_after(100, Condition::Up).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(cramped.counted("a"), 800);
    let metrics = cramped.metrics();
    let lost = (metrics.hits.delivery_unknown.get(), metrics.hits.stranded.get());
    assert_eq!(lost, (0, 0));
    // its estimate is that of the store
    assert!(cramped.ask("a", 200, false).await && !cramped.ask("a", 1, false).await);
}

/// Hits that an evicted counter gives back, in a report that the store rejects.
#[tokio::test(start_paused = true)]
async fn what_a_rejected_report_of_an_evicted_counter_gives_back_is_stranded() {
    let cramped = Cramped::new(Coordination::Interval).await;
    cramped.hit("a", 10).await;
    sleep(Duration::from_secs(3)).await;
    cramped.ask("a", 4, true).await;
    // within a pause, which is at most a second, the report leaves
    let sent = cramped.metrics().store.commands.get();
    while cramped.metrics().store.commands.get() == sent {
        sleep(Duration::from_millis(1)).await;
    }
    cramped.shared.set(Condition::Rejecting);
    cramped.hit("b", 1).await;
    cramped.set_after(200, Condition::Up).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!((cramped.counted("a"), cramped.metrics().hits.stranded.get()), (10, 4));
}

/// The request for a lease carries a report. The store rejects both, and the counter was evicted meanwhile.
#[tokio::test(start_paused = true)]
async fn what_a_rejected_request_for_a_lease_has_reported_is_recorded() {
    let cramped = Cramped::new(Coordination::Lease).await;
    cramped.hit("a", 10).await;
    sleep(Duration::from_millis(150)).await;
    let counted = cramped.counted("a");
    cramped.ask("a", 4, true).await;
    cramped.shared.set(Condition::Rejecting);
    let (over, ()) = tokio::join!(cramped.ask("a", 500, false), async {
        sleep(Duration::from_millis(20)).await;
        // evicts the counter, with the hits that it holds
        cramped.ask("b", 0, false).now_or_never();
        cramped.set_after(100, Condition::Up).await;
    });
    assert!(over, "the fallback admits it when the budget ends");
    sleep(Duration::from_secs(5)).await;
    let leased = counted - 10;
    assert_eq!(cramped.counted("a"), counted + 500);
    assert_eq!(
        (cramped.metrics().hits.stranded.get(), cramped.metrics().hits.unreported.get()),
        (leased + 4, 0)
    );
}

/// A lease that is granted to an evicted counter is used by nobody. The decision that it came with is made
/// nevertheless.
#[tokio::test(start_paused = true)]
async fn what_is_granted_to_an_evicted_counter_is_recorded() {
    for is_shared in [false, true] {
        let cramped = Cramped::new(Coordination::Lease).await;
        let (admitted, granted) = tokio::join!(cramped.ask("a", 100, false), async {
            sleep(Duration::from_millis(20)).await;
            if is_shared {
                // another decision, which waits no longer
                assert!(cramped.ask("a", 1, false).now_or_never().is_none());
            }
            sleep(Duration::from_millis(40)).await;
            let granted = cramped.counted("a");
            cramped.ask("b", 0, false).now_or_never();
            granted
        });
        assert!(admitted && granted >= 100);
        cramped.store.close().await;
        assert_eq!(cramped.counted("a"), granted);
        let metrics = cramped.metrics();
        assert_eq!((metrics.hits.stranded.get(), metrics.hits.delivery_unknown.get()), (granted - 100, 0));
    }
}

/// A task receives the reply, since hits were given back meanwhile. It is lost, as is that to the next request of the
/// decision.
#[tokio::test(start_paused = true)]
async fn what_an_evicted_counter_may_have_been_granted_is_unknown() {
    let cramped = Cramped::new(Coordination::Lease).await;
    let round_trip = Duration::from_millis(100);
    let network = Network { round_trip, timeout: 2 * round_trip, lost_replies: 1.0, ..Network::default() };
    cramped.store.remote().set_network(network);
    let (admitted, ()) = tokio::join!(cramped.ask("a", 1, false), async {
        sleep(Duration::from_millis(20)).await;
        assert!(cramped.ask("a", 1, true).now_or_never().is_some());
        cramped.ask("b", 0, false).now_or_never();
    });
    assert!(admitted, "the fallback decides");
    let metrics = cramped.metrics();
    assert_eq!((metrics.hits.stranded.get(), metrics.hits.delivery_unknown.get()), (1, cramped.counted("a")));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_unknown_of_a_request_that_was_not_sent() {
    let cramped = Cramped::new(Coordination::Lease).await;
    for hits in [1, 100] {
        let mut first = Box::pin(cramped.ask("a", hits, false));
        assert!((&mut first).now_or_never().is_none(), "it waits");
        cramped.ask("b", 0, false).now_or_never();
        drop(first);
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!((cramped.counted("a"), cramped.metrics().hits.delivery_unknown.get()), (0, 0));
}

/// The fallback decides them at once.
#[tokio::test(start_paused = true)]
async fn decisions_that_wait_for_others_do_not_wait_for_an_evicted_counter() {
    let cramped = Cramped::new(Coordination::Lease).await;
    let begun = Instant::now();
    let hits = async |hits| assert!(cramped.ask("a", hits, false).await);
    tokio::join!(hits(1), hits(1), hits(1), hits(5), async {
        sleep(Duration::from_millis(20)).await;
        cramped.ask("b", 0, false).now_or_never();
    });
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
}

/// The reply to its report says how many hits it has counted, which is no lease.
#[tokio::test(start_paused = true)]
async fn what_an_evicted_counter_has_reported_is_not_stranded() {
    let cramped = Cramped::new(Coordination::Lease).await;
    cramped.shared.set(Condition::Down);
    while !cramped.store.is_store_unavailable() {
        sleep(Duration::from_millis(10)).await;
    }
    cramped.hit("a", 30).await;
    cramped.shared.set(Condition::Up);
    while cramped.store.is_store_unavailable() {
        sleep(Duration::from_millis(10)).await;
    }
    let (admitted, ()) = tokio::join!(cramped.ask("a", 0, false), async {
        sleep(Duration::from_millis(20)).await;
        cramped.ask("b", 0, false).now_or_never();
    });
    assert!(admitted);
    cramped.store.close().await;
    assert_eq!((cramped.metrics().hits.stranded.get(), cramped.counted("a")), (0, 30));
}
