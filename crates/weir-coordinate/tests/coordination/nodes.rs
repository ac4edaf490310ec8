//! A store of two nodes, of which one does not reply: what the other one counts does not wait for it.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::join_all};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, KeyHasher, Matched, OverLimitPolicy, Period, Request, RuleNode,
    RuleSet, Scope, Tier, Timestamp, Values,
};
use weir_store::{
    Store,
    clock::Clock,
    remote::{Command, Heartbeat, Members, Remote, RemoteError, Replies, StoreNode, Target},
};

use crate::fleet::{EPOCH, rule};

const MINUTE: Tier = Tier::fixed_window(1_000_000, Period::from_secs(60));

/// A store whose even minutes one node counts, and whose odd minutes another one does, which also counts all hits of
/// `lease`.
struct TwoNodes {
    inner: SimulatedRemote,
    /// Whether the node of the even minutes holds back its replies.
    is_frozen: watch::Receiver<bool>,
}

impl Remote for TwoNodes {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        let waits =
            commands.iter().any(|command| self.node(&command.target, command.counted_at()) == StoreNode(0));
        let replies = self.inner.call(commands).await;
        if waits {
            let mut frozen = self.is_frozen.clone();
            frozen.wait_for(|frozen| !frozen).await.expect("the test is running");
        }
        replies
    }

    fn heartbeat(
        &self,
        heartbeat: Heartbeat<'_>,
    ) -> impl Future<Output = Result<Members, RemoteError>> + Send {
        self.inner.heartbeat(heartbeat)
    }

    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        let is_other = target.path.starts_with("d|lease=");
        StoreNode(if is_other { 1 } else { at.as_nanos() / MINUTE.period.as_nanos() % 2 })
    }

    fn members_node(&self) -> StoreNode {
        StoreNode(1)
    }
}

struct Setup {
    clock: SimulatedClock,
    shared: SimulatedStore,
    store: Coordinated<TwoNodes>,
    rules: RuleSet,
    freeze: watch::Sender<bool>,
}

impl Setup {
    /// Starts an instance at the beginning of a minute of the first node.
    async fn start(mode: Coordination) -> Self {
        let first =
            Timestamp::from_nanos(EPOCH.as_nanos() - EPOCH.as_nanos() % (2 * MINUTE.period.as_nanos()));
        let clock = SimulatedClock::new(first);
        let shared = SimulatedStore::new(clock.clone(), 7);
        let (freeze, is_frozen) = watch::channel(false);
        let remote = TwoNodes { inner: shared.connect(Network::default()), is_frozen };
        let settings = CoordinationSettings { instance: "i".into(), ..CoordinationSettings::default() };
        let store = Coordinated::new(remote, Arc::new(clock.clone()), settings);
        let nodes = [("k", mode), ("lease", Coordination::Lease)].map(|(key, mode)| {
            let rule = rule(mode, &[MINUTE], OverLimitPolicy::Count);
            RuleNode { rule: Some(rule), ..RuleNode::new(key, Values::Any) }
        });
        let rules = RuleSet::new(&[Domain::new("d", nodes.into())], KeyHasher::random());
        let setup = Self { clock, shared, store, rules, freeze };
        for value in ["a", "b"] {
            setup.hit(value, 1).await;
        }
        sleep(Duration::from_secs(2)).await;
        if mode == Coordination::Interval {
            assert_eq!((setup.counted("a"), setup.counted("b")), (1, 1));
        }
        setup
    }

    async fn hit(&self, value: &str, hits: u32) {
        self.hit_of("k", value, hits).await;
    }

    async fn hit_of(&self, key: &str, value: &str, hits: u32) {
        let entries = [Entry { key, value }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        assert!(!decisions.expect("a coordinated store always decides")[0].over);
    }

    /// Returns the hits of `value` that the store counts in the current minute.
    fn counted(&self, value: &str) -> u64 {
        self.counted_of("k", value)
    }

    fn counted_of(&self, key: &str, value: &str) -> u64 {
        let target = Target {
            path: format!("d|{key}={value}").into(),
            tiers: [MINUTE].into(),
            over_limit_policy: OverLimitPolicy::Count,
        };
        self.shared.used(&target, self.clock.right())
    }

    /// Waits until `early` before the next minute begins.
    async fn wait_for_the_next_minute(&self, early: Duration) {
        let now = self.clock.now();
        let left = Duration::from(now.window_end(MINUTE.period).since(now));
        sleep(left.saturating_sub(early)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_does_not_wait_for_the_node_of_the_window_before_it() {
    let setup = Setup::start(Coordination::Interval).await;
    setup.freeze.send_replace(true);
    setup.wait_for_the_next_minute(Duration::from_secs(2)).await;
    // reported to the node that no longer replies
    setup.hit("a", 10).await;
    setup.wait_for_the_next_minute(Duration::ZERO).await;
    sleep(Duration::from_millis(1)).await;
    setup.hit("a", 3).await;
    setup.hit("b", 4).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!((setup.counted("a"), setup.counted("b")), (3, 4));
    // the late reply changes nothing
    setup.freeze.send_replace(false);
    setup.hit("a", 2).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!((setup.counted("a"), setup.counted("b")), (5, 4));
}

#[tokio::test(start_paused = true)]
async fn hits_of_two_windows_are_reported_to_each_node_by_itself() {
    let setup = Setup::start(Coordination::Interval).await;
    setup.wait_for_the_next_minute(Duration::from_millis(5)).await;
    setup.freeze.send_replace(true);
    // both are reported together
    setup.hit("a", 10).await;
    setup.wait_for_the_next_minute(Duration::ZERO).await;
    sleep(Duration::from_millis(1)).await;
    setup.hit("a", 3).await;
    setup.hit("b", 4).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!((setup.counted("a"), setup.counted("b")), (3, 4));
    // once the silence was noticed, nothing waits for the first node
    sleep(Duration::from_secs(2)).await;
    setup.hit("a", 2).await;
    setup.hit("b", 2).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!((setup.counted("a"), setup.counted("b")), (5, 6));
}

/// The fallback decides only about windows that the silent node counts.
#[tokio::test(start_paused = true)]
async fn decisions_about_the_window_of_another_node_do_not_use_the_fallback() {
    let setup = Setup::start(Coordination::Interval).await;
    let fallback = || setup.store.coordination_metrics().decisions.fallback.get();
    setup.freeze.send_replace(true);
    while !setup.store.is_store_unavailable() {
        setup.hit("a", 1).await;
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(fallback(), 0);
    setup.hit("a", 1).await;
    assert_eq!(fallback(), 1);
    setup.wait_for_the_next_minute(Duration::ZERO).await;
    sleep(Duration::from_millis(1)).await;
    setup.hit("a", 1).await;
    assert!(setup.store.is_store_unavailable());
    assert_eq!(fallback(), 1);
}

/// A request of the last minute for a lease, whether it is shared or of one decision, holds up neither decisions of the
/// next minute nor what is reported of it.
#[tokio::test(start_paused = true)]
async fn leases_of_a_window_do_not_wait_for_the_node_of_the_window_before_it() {
    for hits in [1, 20_000] {
        for early in [100, 400] {
            let setup = Setup::start(Coordination::Lease).await;
            let metrics = setup.store.coordination_metrics();
            setup.wait_for_the_next_minute(Duration::from_millis(early)).await;
            setup.freeze.send_replace(true);
            let before = metrics.decisions.fallback.get();
            let values: Vec<String> = (0..20).map(|i| format!("v{i}")).collect();
            join_all(values.iter().map(|value| setup.hit(value, hits))).await;
            assert_eq!(metrics.decisions.fallback.get() - before, 20, "nobody replies");
            setup.wait_for_the_next_minute(Duration::ZERO).await;
            // until the silence is noticed, decisions wait for the requests in flight, in vain, but the other node
            // replies
            sleep(Duration::from_millis(1)).await;
            for value in &values[..5] {
                setup.hit(value, 1).await;
            }
            let before = metrics.decisions.fallback.get();
            setup.hit("w", 1).await;
            assert_eq!(metrics.decisions.fallback.get(), before, "{hits} hits, {early} ms before");
            sleep(Duration::from_secs(1)).await;
            let before = metrics.decisions.fallback.get();
            for value in &values {
                setup.hit(value, hits).await;
                setup.hit(value, hits).await;
            }
            assert_eq!(metrics.decisions.fallback.get(), before, "{hits} hits, {early} ms before");
            setup.store.close().await;
            for (i, value) in values.iter().enumerate() {
                let counted = 2 * u64::from(hits) + u64::from(i < 5);
                assert_eq!(setup.counted(value), counted, "{hits} hits, {early} ms before");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_stops_returns_its_leases_although_a_node_does_not_reply() {
    let setup = Setup::start(Coordination::Interval).await;
    setup.freeze.send_replace(true);
    let mut waiting = Box::pin(setup.hit_of("lease", "c", 1));
    assert!((&mut waiting).now_or_never().is_none(), "it waits");
    sleep(Duration::from_millis(5)).await;
    assert!(setup.counted_of("lease", "c") > 0);
    setup.hit("a", 10).await;
    let closing = Instant::now();
    setup.store.close().await;
    assert_eq!(setup.counted_of("lease", "c"), 1, "the hit itself, which is decided");
    assert!(closing.elapsed() < Duration::from_secs(3), "{:?}", closing.elapsed());
}
