//! Callers that wait for counters in a store that instances share, which is simulated, and on disk.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Coordination, Descriptor, Entry, KeyHasher, OnStoreFailure, Period, Request, RuleSet, Timestamp,
    line::Rejection,
};
use weir_limiter::{Acquired, DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::clock::Clock as _;

use super::support::rules;

/// The start of a window of an hour.
const START: Timestamp = Timestamp::from_secs(1_699_999_200);

pub(super) struct World {
    pub(super) clock: SimulatedClock,
    store: SimulatedStore,
}

/// An instance, which asks the store as long as this is there.
pub(super) struct Instance {
    pub(super) limiter: Arc<Limiter<Coordinated<SimulatedRemote>>>,
    remote: SimulatedRemote,
    pub(super) clock: SimulatedClock,
    hasher: KeyHasher,
    _asks: JoinSet<()>,
}

impl World {
    /// Two seconds before [`START`], so that all instances know each other then.
    pub(super) fn new() -> Self {
        let clock = SimulatedClock::new(Timestamp::from_nanos(START.as_nanos() - 2_500_000_000));
        let store = SimulatedStore::new(clock.clone(), 7);
        Self { clock, store }
    }

    fn instance(&self, number: usize, rules: &str, mode: Coordination) -> Instance {
        let network = Network { round_trip: Duration::from_millis(2), ..Network::default() };
        let remote = self.store.connect(network);
        let settings = CoordinationSettings {
            coordination: mode,
            instance: format!("i{number}"),
            ..CoordinationSettings::default()
        };
        let store = Coordinated::new(remote.clone(), Arc::new(self.clock.clone()), settings);
        let limiter = Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default());
        let (limiter, mut asks) = (Arc::new(limiter), JoinSet::new());
        asks.spawn(Limiter::ask_store(&limiter, Arc::new(self.clock.clone()), None));
        let hasher = KeyHasher::with_secret([1, 2]);
        let instance = Instance { limiter, remote, clock: self.clock.clone(), hasher, _asks: asks };
        instance.load(rules);
        instance
    }

    pub(super) async fn fleet(
        &self,
        instances: usize,
        rules: &str,
        mode: Coordination,
    ) -> Vec<Arc<Instance>> {
        let fleet: Vec<_> = (0..instances).map(|i| Arc::new(self.instance(i, rules, mode))).collect();
        sleep(START.since(self.clock.now()).into()).await;
        fleet
    }

    /// Starts two instances that split 40 requests a second, when both have parts.
    async fn split_fleet(&self) -> Vec<Arc<Instance>> {
        let rules = rules("{ requests: 40, per: 1s, coordination: split }");
        let fleet = self.fleet(2, &rules, Coordination::Split).await;
        sleep(Duration::from_millis(5_500)).await;
        fleet
    }
}

impl Instance {
    pub(super) fn load(&self, rules: &str) {
        let loaded = weir_config::parse("rules", rules).unwrap_or_else(|errors| panic!("{errors}"));
        self.limiter.load(RuleSet::new(&loaded.domains, self.hasher));
    }

    pub(super) async fn acquire(&self, hits: u64, max_wait: Duration) -> Acquired {
        let descriptor = Descriptor {
            entries: [Entry { key: "api", value: "x" }].into_iter().collect(),
            hits: Some(hits),
            ..Descriptor::default()
        };
        let request =
            Request { domain: "partners", descriptors: [descriptor].into_iter().collect(), hits: 0 };
        let max_wait = Period::from_nanos(u64::try_from(max_wait.as_nanos()).expect("short"));
        let acquired = self.limiter.acquire(&request, max_wait, &self.clock, |_, acquired| acquired.clone());
        acquired.await.expect("an answer")
    }
}

/// What a provider counts in each second since [`START`], and each instance's part of it.
#[derive(Default)]
struct Provider {
    seconds: Mutex<BTreeMap<u64, u64>>,
    by_instance: [AtomicU64; 8],
    is_over: AtomicBool,
}

/// Keeps `callers` of each instance waiting until the provider's day is over.
fn consume(fleet: &[Arc<Instance>], callers: &[usize], hits: u64, provider: &Arc<Provider>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for (i, (instance, callers)) in fleet.iter().zip(callers).enumerate() {
        for _ in 0..*callers {
            let (instance, provider) = (Arc::clone(instance), Arc::clone(provider));
            tasks.spawn(async move {
                while !provider.is_over.load(Ordering::Relaxed) {
                    let acquired = instance.acquire(hits, Duration::from_mins(1)).await;
                    if acquired.rejection.is_none() {
                        let second = instance.clock.now().since(START).as_nanos() / 1_000_000_000;
                        *provider.seconds.lock().entry(second).or_default() += hits;
                        provider.by_instance[i].fetch_add(hits, Ordering::Relaxed);
                    }
                    // the call
                    sleep(Duration::from_millis(1)).await;
                }
            });
        }
    }
    tasks
}

/// Runs a fleet for `seconds` and returns what the provider counted in each of them.
async fn run(
    limit: &str,
    mode: Coordination,
    callers: &[usize],
    hits: u64,
    seconds: u64,
) -> (Vec<u64>, Arc<Provider>, u64) {
    let world = World::new();
    let fleet = world.fleet(callers.len(), &rules(limit), mode).await;
    let calls = || fleet.iter().map(|instance| instance.remote.calls()).sum::<u64>();
    let before = calls();
    let provider = Arc::<Provider>::default();
    let _tasks = consume(&fleet, callers, hits, &provider);
    sleep(Duration::from_secs(seconds)).await;
    provider.is_over.store(true, Ordering::Relaxed);
    let counted = provider.seconds.lock().clone();
    let counted = (0..seconds).map(|second| counted.get(&second).copied().unwrap_or_default()).collect();
    (counted, provider, calls() - before)
}

#[tokio::test(start_paused = true)]
async fn a_fleet_uses_all_of_the_limit_and_no_more() {
    for mode in [Coordination::Lease, Coordination::Strict, Coordination::Interval] {
        let limit = "{ requests: 400, per: 1s, algorithm: fixed_window }";
        let (counted, provider, calls) = run(limit, mode, &[60; 8], 1, 10).await;
        assert!(counted.iter().all(|count| *count <= 400), "{mode:?}: {counted:?}");
        assert!(counted.iter().sum::<u64>() * 100 >= 99 * 400 * 10, "{mode:?}: {counted:?}");
        let parts: Vec<u64> = provider.by_instance.iter().map(|part| part.load(Ordering::Relaxed)).collect();
        assert!(parts.iter().all(|part| (300..=700).contains(part)), "{mode:?}: {parts:?}");
        // runs, and not a call for each of 4,000 waiters
        assert!(calls < 2_000, "{mode:?}: {calls} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn one_busy_instance_of_eight_gets_what_the_others_leave() {
    let limit = "{ requests: 400, per: 1s, algorithm: fixed_window }";
    let (counted, ..) = run(limit, Coordination::Lease, &[600, 1, 1, 1, 1, 1, 1, 1], 1, 10).await;
    assert!(counted.iter().all(|count| *count <= 400), "{counted:?}");
    assert!(counted[1..].iter().all(|count| *count >= 396), "{counted:?}");
}

#[tokio::test(start_paused = true)]
async fn every_algorithm_is_waited_for() {
    for (limit, most, least) in [
        ("{ requests: 100, per: 1s, algorithm: sliding_window }", 100, 85),
        ("{ requests: 100, per: 1s, algorithm: token_bucket, burst: 20 }", 120, 90),
        ("{ tiers: [{ requests: 100, per: 1s }, { requests: 500, per: 10s }] }", 100, 0),
    ] {
        let (counted, ..) = run(limit, Coordination::Lease, &[40; 4], 1, 10).await;
        assert!(counted.iter().all(|count| *count <= most), "{limit}: {counted:?}");
        assert!(counted[1..].iter().all(|count| *count >= least), "{limit}: {counted:?}");
        let all: u64 = counted.iter().sum();
        assert!(!limit.contains("tiers") || all == 500, "{limit}: {counted:?}");
    }
}

/// With fewer hits than instances, everybody has a turn.
#[tokio::test(start_paused = true)]
async fn a_small_limit_goes_round() {
    let limit = "{ requests: 5, per: 1s, algorithm: fixed_window }";
    let (counted, provider, _) = run(limit, Coordination::Strict, &[3; 8], 1, 40).await;
    assert!(counted.iter().all(|count| *count == 5), "{counted:?}");
    let parts: Vec<u64> = provider.by_instance.iter().map(|part| part.load(Ordering::Relaxed)).collect();
    assert!(parts.iter().all(|part| *part >= 8), "{parts:?}");
}

#[tokio::test(start_paused = true)]
async fn heavy_requests_do_not_starve() {
    let limit = "{ requests: 100, per: 1s, algorithm: fixed_window }";
    let world = World::new();
    let fleet = world.fleet(4, &rules(limit), Coordination::Lease).await;
    let provider = Arc::<Provider>::default();
    let _light = consume(&fleet[..3], &[60; 3], 1, &provider);
    sleep(Duration::from_millis(500)).await;
    for hits in [80, 7, 100] {
        let acquired = fleet[3].acquire(hits, Duration::from_secs(30)).await;
        assert_eq!(acquired.rejection, None, "{hits} hits after {:?}", acquired.waited);
    }
    assert_eq!(fleet[3].acquire(101, Duration::from_secs(30)).await.rejection, Some(Rejection::Never));
}

/// Callers of one instance are served in the order of their arrival.
#[tokio::test(start_paused = true)]
async fn waiters_of_an_instance_are_served_in_order() {
    let world = World::new();
    let limit = "{ requests: 3, per: 1s, algorithm: fixed_window }";
    let instance = world.fleet(1, &rules(limit), Coordination::Lease).await.remove(0);
    let (mut tasks, order) = (JoinSet::new(), Arc::new(Mutex::new(Vec::new())));
    for i in 0..20 {
        let (instance, order) = (Arc::clone(&instance), Arc::clone(&order));
        tasks.spawn(async move {
            let acquired = instance.acquire(1, Duration::from_mins(1)).await;
            assert_eq!(acquired.rejection, None);
            order.lock().push(i);
        });
        sleep(Duration::from_millis(5)).await;
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
}

/// Whoever cannot be served in time is told at once, with a wait that is kept then; a wait that the estimate allows and
/// the others do not ends at the deadline.
#[tokio::test(start_paused = true)]
async fn waits_that_are_too_long_are_rejected_at_once() {
    let world = World::new();
    let limit = "{ requests: 10, per: 1s, algorithm: fixed_window }";
    let fleet = world.fleet(2, &rules(limit), Coordination::Lease).await;
    assert_eq!(fleet[0].acquire(10, Duration::from_secs(1)).await.rejection, None);
    let begun = world.clock.now();
    let told = fleet[0].acquire(1, Duration::from_millis(500)).await;
    let Some(Rejection::Timeout { retry_after }) = told.rejection else { panic!("{told:?}") };
    assert!(world.clock.now().since(begun) < Period::from_millis(20), "not at once");
    assert!(retry_after > Period::from_millis(900) && retry_after <= Period::from_secs(1), "{retry_after}");
    // in some windows, another instance is first
    let provider = Arc::<Provider>::default();
    let _others = consume(&fleet[1..], &[2], 10, &provider);
    let mut late = 0;
    for _ in 0..20 {
        let begun = world.clock.now();
        let acquired = fleet[0].acquire(10, Duration::from_millis(1_500)).await;
        let waited = world.clock.now().since(begun);
        late += u32::from(acquired.rejection.is_some());
        // sooner, if a reply shows that the others have taken all of the last window
        assert!(waited <= Period::from_millis(1_560), "{waited}");
    }
    assert!(late > 0 && late < 20, "{late} were late");
}

/// Callers that leave give up their places and what was granted to them.
#[tokio::test(start_paused = true)]
async fn callers_that_leave_lose_no_hits() {
    let world = World::new();
    let limit = "{ requests: 10, per: 10s, algorithm: fixed_window }";
    let instance = world.fleet(1, &rules(limit), Coordination::Lease).await.remove(0);
    assert_eq!(instance.acquire(10, Duration::ZERO).await.rejection, None);
    let mut leavers = JoinSet::new();
    for _ in 0..50 {
        let instance = Arc::clone(&instance);
        leavers.spawn(async move { instance.acquire(1, Duration::from_mins(1)).await });
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(instance.limiter.waiters(), 50);
    leavers.shutdown().await;
    assert_eq!(instance.limiter.waiters(), 0);
    // nothing of the next window was taken for them
    let acquired = instance.acquire(10, Duration::from_secs(20)).await;
    assert_eq!(acquired.rejection, None);
    assert!(acquired.waited <= Period::from_millis(9_200), "{:?}", acquired.waited);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_given_back_to_the_store() {
    let world = World::new();
    let limit = "{ requests: 10, per: 1h, algorithm: fixed_window }";
    let fleet = world.fleet(2, &rules(limit), Coordination::Lease).await;
    let acquired = fleet[0].acquire(10, Duration::ZERO).await;
    let receipt = acquired.receipt.expect("a receipt");
    assert!(fleet[1].acquire(1, Duration::ZERO).await.rejection.is_some());
    fleet[0].limiter.put_back(receipt, world.clock.now());
    // the other one looks for returned hits while it rejects
    for _ in 0..10 {
        sleep(Duration::from_secs(1)).await;
        if fleet[1].acquire(9, Duration::ZERO).await.rejection.is_none() {
            return;
        }
    }
    panic!("nothing was given back");
}

#[tokio::test(start_paused = true)]
async fn lines_follow_reloads() {
    let world = World::new();
    let of = |requests: u32| rules(&format!("{{ requests: {requests}, per: 10s, algorithm: fixed_window }}"));
    let instance = world.fleet(1, &of(1), Coordination::Lease).await.remove(0);
    assert_eq!(instance.acquire(1, Duration::ZERO).await.rejection, None);
    let waits = |hits| {
        let instance = Arc::clone(&instance);
        tokio::spawn(
            async move { (instance.acquire(hits, Duration::from_mins(1)).await, instance.clock.now()) },
        )
    };
    let raised = waits(1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(instance.limiter.waiters(), 1);
    instance.load(&of(2));
    let (acquired, at) = raised.await.expect("no panic");
    assert!(acquired.rejection.is_none() && at < START.after(Period::from_secs(2)), "{acquired:?} at {at:?}");
    let (heavy, gone) = (waits(2), waits(1));
    sleep(Duration::from_secs(1)).await;
    instance.load(&of(1));
    let told = heavy.await.expect("no panic").0.rejection;
    assert_eq!(told, Some(Rejection::Never));
    instance.load("domain: partners\ndescriptors:\n  - key: other\n");
    assert_eq!(gone.await.expect("no panic").0.rejection, None);
}

/// What is counted in the shadow of a limit takes another call to the store, in which the caller may leave.
#[tokio::test(start_paused = true)]
async fn callers_that_leave_while_a_shadow_is_counted_lose_no_hits() {
    let limit = "{ requests: 10, per: 30s, algorithm: fixed_window, shadow: { requests: 5, per: 30s } }";
    let world = World::new();
    let instance = world.fleet(1, &rules(limit), Coordination::Strict).await.remove(0);
    let window = |number| START.after(Period::from_secs(number * 30)).since(world.clock.now());
    for number in 0..20 {
        // at once, or in the line of the window before, until some milliseconds of this one
        let (waits, millis) = (number % 2 == 1, number / 2);
        sleep(Duration::from(window(number))).await;
        if waits {
            assert_eq!(instance.acquire(10, Duration::ZERO).await.rejection, None);
        }
        let begins = if waits { window(number + 1).into() } else { Duration::ZERO };
        let leaves = begins + Duration::from_millis(millis);
        if let Ok(told) = timeout(leaves, instance.acquire(10, Duration::from_secs(50))).await {
            instance.limiter.put_back(told.receipt.expect("a receipt"), world.clock.now());
        }
        sleep(Duration::from_secs(2)).await;
        let after = instance.acquire(10, Duration::ZERO).await;
        assert_eq!(after.rejection, None, "{millis} ms, {waits}");
        if waits {
            instance.limiter.put_back(after.receipt.expect("a receipt"), world.clock.now());
            sleep(Duration::from_secs(2)).await;
        }
    }
}

/// A request is decided by the rules that it began with, also if its rule has fewer tiers when the store replies.
#[tokio::test(start_paused = true)]
async fn a_reload_while_the_store_is_asked_changes_nothing() {
    let two =
        rules("{ tiers: [{ requests: 1000, per: 1s }, { requests: 2, per: 1h }], algorithm: fixed_window }");
    let one = rules("{ requests: 1000, per: 1s, algorithm: fixed_window }");
    let three = rules(
        "{ tiers: [{ requests: 1000, per: 1s }, { requests: 9, per: 1h }, { requests: 9, per: 1d }], \
         algorithm: fixed_window }",
    );
    for used in [0, 2] {
        for (max_wait, other) in [(0, &one), (1, &one), (1, &three), (5_000, &one), (5_000, &three)] {
            let world = World::new();
            let instance = world.fleet(1, &two, Coordination::Strict).await.remove(0);
            if used > 0 {
                assert_eq!(instance.acquire(used, Duration::ZERO).await.rejection, None);
            }
            let asks = |max_wait| {
                let instance = Arc::clone(&instance);
                tokio::spawn(async move { instance.acquire(1, Duration::from_millis(max_wait)).await })
            };
            let asked = asks(max_wait);
            sleep(Duration::from_micros(500)).await;
            instance.load(other);
            // which has the counter follow the new rules
            let later = asks(0);
            let rejection = asked.await.expect("no panic").rejection;
            assert_eq!(rejection.is_some(), used > 0, "{used} {max_wait}: {rejection:?}");
            assert_eq!(later.await.expect("no panic").rejection, None);
        }
    }
}

/// Hits that were taken of another window than a reload's are not taken off that.
#[tokio::test(start_paused = true)]
async fn hits_are_given_back_to_the_windows_that_counted_them() {
    let world = World::new();
    let of = |period: &str| rules(&format!("{{ requests: 10, per: {period}, algorithm: fixed_window }}"));
    let instance = world.fleet(1, &of("1m"), Coordination::Strict).await.remove(0);
    let first = instance.acquire(10, Duration::ZERO).await.receipt.expect("a receipt");
    instance.load(&of("1h"));
    assert_eq!(instance.acquire(10, Duration::ZERO).await.rejection, None);
    instance.limiter.put_back(first, world.clock.now());
    sleep(Duration::from_secs(2)).await;
    assert!(instance.acquire(1, Duration::ZERO).await.rejection.is_some());
}

/// As above, for a caller that has waited under the old rules, and looks at its answer under the new ones.
#[tokio::test(start_paused = true)]
async fn hits_that_were_waited_for_are_given_back_to_the_windows_that_counted_them() {
    let world = World::new();
    let of = |period: &str| rules(&format!("{{ requests: 10, per: {period}, algorithm: fixed_window }}"));
    let instance = world.fleet(1, &of("30s"), Coordination::Strict).await.remove(0);
    assert_eq!(instance.acquire(10, Duration::ZERO).await.rejection, None);
    let mut waits = Box::pin(instance.acquire(10, Duration::from_secs(50)));
    assert!(timeout(Duration::from_secs(1), &mut waits).await.is_err());
    // it is admitted meanwhile
    sleep(Duration::from_secs(35)).await;
    instance.load(&of("1h"));
    assert_eq!(instance.acquire(10, Duration::ZERO).await.rejection, None);
    let waited = waits.await;
    assert_eq!(waited.rejection, None);
    if let Some(receipt) = waited.receipt {
        instance.limiter.put_back(receipt, world.clock.now());
    }
    sleep(Duration::from_secs(2)).await;
    assert!(instance.acquire(1, Duration::ZERO).await.rejection.is_some());
}

/// A reply that comes after the end of the window leaves nothing behind in longer windows.
#[tokio::test(start_paused = true)]
async fn hits_of_a_window_that_ends_on_the_way_are_given_back_to_longer_ones() {
    let limit = "{ tiers: [{ requests: 10, per: 1s }, { requests: 20, per: 1h }], algorithm: fixed_window }";
    let world = World::new();
    let instance = world.fleet(1, &rules(limit), Coordination::Strict).await.remove(0);
    for _ in 0..2 {
        // the request reaches the store before the end of the second, and the reply comes after it
        let until_end = 1_000_000_000 - world.clock.now().as_nanos() % 1_000_000_000;
        sleep(Duration::from_nanos(until_end - 1_500_000)).await;
        let acquired = instance.acquire(10, Duration::from_secs(3)).await;
        assert_eq!(acquired.rejection, None);
        sleep(Duration::from_millis(500)).await;
    }
    sleep(Duration::from_secs(1)).await;
    assert!(instance.acquire(1, Duration::ZERO).await.rejection.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_stop_tells_everybody() {
    let world = World::new();
    let limit = "{ requests: 1, per: 1m, algorithm: fixed_window }";
    let instance = world.fleet(1, &rules(limit), Coordination::Strict).await.remove(0);
    assert_eq!(instance.acquire(1, Duration::ZERO).await.rejection, None);
    let waits = tokio::spawn({
        let instance = Arc::clone(&instance);
        async move { instance.acquire(1, Duration::from_mins(1)).await }
    });
    sleep(Duration::from_secs(1)).await;
    instance.limiter.close_waiters(world.clock.now());
    assert_eq!(waits.await.expect("no panic").rejection, Some(Rejection::Closed));
    assert_eq!(instance.acquire(1, Duration::from_secs(9)).await.rejection, Some(Rejection::Closed));
}

/// Without the store, `on_store_failure` serves the line: by the part of the instance, or not at all.
#[tokio::test(start_paused = true)]
async fn an_outage_is_decided_by_the_rules_policy() {
    for policy in [OnStoreFailure::Local, OnStoreFailure::Deny, OnStoreFailure::Allow] {
        let policy_name = policy.name();
        let limit = format!("{{ requests: 100, per: 1s, on_store_failure: {policy_name} }}");
        let rules = rules(&limit);
        let world = World::new();
        let fleet = world.fleet(4, &rules, Coordination::Lease).await;
        let provider = Arc::<Provider>::default();
        // nothing slows down those that are all admitted
        let callers = if policy == OnStoreFailure::Allow { 2 } else { 40 };
        let _tasks = consume(&fleet, &[callers; 4], 1, &provider);
        sleep(Duration::from_secs(5)).await;
        for instance in &fleet {
            instance.remote.partition(true);
        }
        sleep(Duration::from_secs(10)).await;
        for instance in &fleet {
            instance.remote.partition(false);
        }
        sleep(Duration::from_secs(10)).await;
        let counted = provider.seconds.lock().clone();
        let second = |second: u64| counted.get(&second).copied().unwrap_or_default();
        let (during, after) = (second(10), second(22));
        match policy {
            OnStoreFailure::Local => assert!((60..=100).contains(&during), "{counted:?}"),
            OnStoreFailure::Deny => assert_eq!(during, 0, "{counted:?}"),
            OnStoreFailure::Allow => assert!(during > 100, "{counted:?}"),
        }
        assert!((99..=100).contains(&after), "{policy:?}: {counted:?}");
        assert!(
            policy == OnStoreFailure::Allow || counted.values().all(|count| *count <= 100),
            "{policy:?}: {counted:?}"
        );
    }
}

/// Has `callers` wait at the first instance of `fleet`, and one more come who cannot be served within 900 ms: it is told
/// at once that the window after the next one would serve it. Returns the callers, when it came, and the wait that it
/// needs.
async fn told_at_once(
    fleet: &[Arc<Instance>],
    callers: usize,
) -> (JoinSet<Option<Rejection>>, Timestamp, Period) {
    let mut calls = JoinSet::new();
    for _ in 0..callers {
        let instance = Arc::clone(&fleet[0]);
        calls.spawn(async move { instance.acquire(1, Duration::from_secs(9)).await.rejection });
    }
    sleep(Duration::from_millis(10)).await;
    let begun = fleet[0].clock.now();
    let late = fleet[0].acquire(1, Duration::from_millis(900)).await;
    assert_eq!(late.waited, Period::default());
    let Some(Rejection::Timeout { retry_after }) = late.rejection else { panic!("{late:?}") };
    let served = begun.window_end(Period::from_secs(1)).after(Period::from_secs(1));
    assert!(retry_after.as_nanos().abs_diff(served.since(begun).as_nanos()) <= 2_000_000, "{retry_after:?}");
    (calls, begun, retry_after)
}

/// Under `split`, the part of the instance says when a caller is served that comes now.
#[tokio::test(start_paused = true)]
async fn whoever_comes_too_late_for_the_part_of_its_instance_is_told_at_once() {
    let world = World::new();
    let fleet = world.split_fleet().await;
    // 20 are admitted in this window, 20 in the next one, and ten and the late one behind them
    let (calls, _, retry_after) = told_at_once(&fleet, 50).await;
    let in_time = fleet[0].acquire(1, retry_after.into()).await;
    assert_eq!(in_time.rejection, None);
    assert!(in_time.waited >= retry_after, "{in_time:?}");
    assert!(calls.join_all().await.iter().all(Option::is_none));
    // the other instance has its own part
    assert_eq!(fleet[1].acquire(1, Duration::ZERO).await.rejection, None);
}

/// Under `split`, callers wait for the part of their own instance, which no other one uses.
#[tokio::test(start_paused = true)]
async fn callers_wait_for_the_part_of_their_instance() {
    let world = World::new();
    let fleet = world.split_fleet().await;
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let instance = Arc::clone(&fleet[0]);
        calls.spawn(async move {
            let acquired = instance.acquire(1, Duration::from_secs(5)).await;
            (acquired.rejection, instance.clock.now())
        });
    }
    let mut seconds = BTreeMap::<Timestamp, u64>::new();
    for (rejection, at) in calls.join_all().await {
        assert_eq!(rejection, None);
        *seconds.entry(at.window_end(Period::from_secs(1))).or_default() += 1;
    }
    assert_eq!(seconds.into_values().collect::<Vec<_>>(), [20, 20, 10]);
}
