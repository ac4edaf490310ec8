//! Resets at instances that share a simulated store, under load: the counter is free everywhere, no other one changes, and
//! what is admitted afterwards is within the limit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Condition, Network, Random, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{Capabilities, Code, Descriptor, Entry, KeyHasher, Period, Request, RuleSet, Timestamp};
use weir_limiter::{DecisionSettings, Limiter, ResetError, ResetOutcome};
use weir_observe::Stats;
use weir_recording::{RecordingOrder, RecordingState};
use weir_store::{MemoryStore, Store, TakeOptions, clock::Clock as _};

const LIMIT: u64 = 60;

struct Instance<S: Store> {
    limiter: Arc<Limiter<S>>,
    clock: SimulatedClock,
}

type SharedInstance = Instance<Coordinated<SimulatedRemote>>;

fn rules(limit: &str) -> RuleSet {
    let text = format!(
        "domain: shop\ndescriptors:\n- {{key: tenant, rate_limit: {{{limit}}}}}\n- {{key: other, rate_limit: {{requests: 5, per: 1h}}}}\n"
    );
    let loaded = weir_config::parse("shop.yaml", &text).expect("valid rules");
    RuleSet::new(&loaded.domains, KeyHasher::random())
}

async fn fleet(
    count: usize,
    limit: &str,
    capabilities: Capabilities,
) -> (SimulatedStore, Vec<SharedInstance>) {
    // in the midst of an hour
    let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_400));
    let shared = SimulatedStore::with_capabilities(clock.skewed(3_000_000_000), 1, capabilities);
    let instance = |i: usize| {
        let settings = CoordinationSettings {
            instance: format!("i{i}"),
            budget: Period::from_millis(50),
            ..CoordinationSettings::default()
        };
        let store = Coordinated::new(shared.connect(Network::default()), Arc::new(clock.clone()), settings);
        let limiter = Arc::new(Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default()));
        limiter.load(rules(limit));
        let (follower, own) = (Arc::clone(&limiter), clock.clone());
        tokio::spawn(async move { follower.follow_announcements(&own).await });
        Instance { limiter, clock: clock.clone() }
    };
    let instances = (0..count).map(instance).collect();
    // those that split limits have known each other for long
    sleep(Duration::from_secs(20)).await;
    (shared, instances)
}

impl<S: Store> Instance<S> {
    async fn takes(&self, key: &str, value: &str, hits: u64) -> bool {
        let entries = std::iter::once(Entry { key, value }).collect();
        let descriptor = Descriptor { entries, limit: None, hits: Some(hits), refund: false };
        let request = Request { domain: "shop", descriptors: std::iter::once(descriptor).collect(), hits: 0 };
        let options = TakeOptions { takes_names: true, ..TakeOptions::default() };
        let decided = self.limiter.decide_with(&request, self.clock.now(), options, |verdict| verdict.code);
        decided.await.expect("a decision") == Code::Ok
    }

    async fn reset(&self, key: &str, value: &str) -> Result<ResetOutcome, ResetError> {
        self.limiter.reset("shop", &[Entry { key, value }], None, &self.clock).await
    }

    /// Until it rejects. Returns what it has admitted.
    async fn exhaust(&self, key: &str, value: &str) -> u64 {
        let mut admitted = 0;
        while self.takes(key, value, 1).await {
            admitted += 1;
            sleep(Duration::from_millis(5)).await;
        }
        admitted
    }
}

/// Instances that ask for hits of one tenant at random times.
struct Load {
    admitted: Arc<AtomicU64>,
    stops: Arc<AtomicBool>,
}

impl Load {
    fn start(instances: &[SharedInstance]) -> Self {
        let load = Self { admitted: Arc::default(), stops: Arc::default() };
        for (i, Instance { limiter, clock }) in instances.iter().enumerate() {
            let instance = Instance { limiter: Arc::clone(limiter), clock: clock.clone() };
            let (admitted, stops) = (Arc::clone(&load.admitted), Arc::clone(&load.stops));
            tokio::spawn(async move {
                let mut random = Random::new(i as u64);
                while !stops.load(Ordering::Relaxed) {
                    sleep(Duration::from_millis(random.next() % 40)).await;
                    let is_admitted = instance.takes("tenant", "a", 1).await;
                    admitted.fetch_add(is_admitted.into(), Ordering::Relaxed);
                }
            });
        }
        load
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn recordings_start_and_stop_at_all_instances() {
    let (_store, instances) = fleet(3, "requests: 60, per: 1h", Capabilities::All).await;
    let [one, others @ ..] = &*instances else { panic!("there are three") };
    let states = || {
        let of = |instance: &SharedInstance| instance.limiter.recorder().state(instance.clock.now());
        others.iter().map(of).collect::<Vec<_>>()
    };
    let now = one.clock.now();
    let order = |seconds, has_values| RecordingOrder {
        keep: Period::from_secs(900),
        until: Some(now.after(Period::from_secs(seconds))),
        has_values,
    };
    assert!(one.limiter.start_recordings(order(300, true), now).await.expect("the store replies"));
    sleep(Duration::from_secs(2)).await;
    assert!(states().iter().all(|state| state.is_on && state.has_values), "{:?}", states());
    // within the time that the note took
    let off =
        |state: &RecordingState| state.until.map(|until| until.since(now.after(Period::from_secs(300))));
    assert!(states().iter().all(|state| off(state) < Some(Period::from_secs(2))), "{:?}", states());
    one.limiter.stop_recordings().await.expect("the store replies");
    sleep(Duration::from_secs(2)).await;
    assert!(states().iter().all(|state| !state.is_on), "{:?}", states());
    // one that ends by itself
    one.limiter.start_recordings(order(30, false), now).await.expect("the store replies");
    sleep(Duration::from_secs(2)).await;
    assert!(states().iter().all(|state| state.is_on && !state.has_values), "{:?}", states());
    sleep(Duration::from_mins(1)).await;
    assert!(states().iter().all(|state| !state.is_on), "{:?}", states());
}

const LIMITS: [&str; 6] = [
    "requests: 60, per: 1h, algorithm: fixed_window",
    "requests_per_unit: 60, unit: hour",
    "requests: 60, per: 1h, algorithm: sliding_window",
    "requests: 60, per: 24h, algorithm: token_bucket",
    "tiers: [{requests: 60, per: 1h}, {requests: 100, per: 1d}]",
    "tiers: [{requests: 60, per: 1h, algorithm: fixed_window}, {requests: 60, per: 24h, algorithm: token_bucket}]",
];

#[tokio::test(start_paused = true)]
async fn a_counter_under_load_is_free_everywhere_and_keeps_its_limit_afterwards() {
    for limit in LIMITS {
        for mode in ["strict", "lease", "interval", "auto"] {
            let limit = format!("{limit}, coordination: {mode}");
            let (_, instances) = fleet(3, &limit, Capabilities::All).await;
            assert_eq!(instances[1].exhaust("other", "x").await, 5);
            let load = Load::start(&instances);
            sleep(Duration::from_secs(6)).await;
            let before = load.admitted();
            // two sync intervals of three instances
            let overshoot = if matches!(mode, "interval" | "auto") { 30 } else { 2 };
            assert!((LIMIT..=LIMIT + overshoot).contains(&before), "{limit}: {before}");
            let begun = Instant::now();
            let outcome = instances[0].reset("tenant", "a").await.expect("it is reset");
            assert_eq!(outcome, ResetOutcome { counters: 1, places: 0, is_everywhere: true });
            assert!(begun.elapsed() <= Duration::from_secs(2), "{limit}: {:?}", begun.elapsed());
            let at_once = load.admitted() - before;
            assert!(at_once <= LIMIT + overshoot, "{limit}: {at_once}");
            sleep(Duration::from_secs(6)).await;
            let after = load.admitted() - before;
            assert!((LIMIT..=LIMIT + overshoot).contains(&after), "{limit}: {after}");
            assert_eq!(instances[2].exhaust("other", "x").await, 0, "{limit}: no other counter changes");
            // nothing that came late makes room, nor takes it
            sleep(Duration::from_secs(15)).await;
            drop(load);
            instances[1].reset("tenant", "a").await.expect("it is reset");
            let mut taken = 0;
            for instance in &instances {
                taken += instance.exhaust("tenant", "a").await;
                sleep(Duration::from_secs(2)).await;
            }
            assert!((LIMIT..=LIMIT + overshoot).contains(&taken), "{limit}: {taken}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_instances_hold_of_an_idle_counter_goes_with_it() {
    for mode in ["lease", "interval", "auto"] {
        let limit = format!("requests: 60, per: 1h, coordination: {mode}");
        let (_, instances) = fleet(3, &limit, Capabilities::All).await;
        for round in 0..5 {
            let mut taken = 0;
            for _ in 0..12 {
                for instance in &instances {
                    taken += u64::from(instance.takes("tenant", "a", 1).await);
                }
                sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(taken, 36, "{mode}, round {round}");
            instances[round % 3].reset("tenant", "a").await.expect("it is reset");
        }
        let mut taken = 0;
        for instance in &instances {
            taken += instance.exhaust("tenant", "a").await;
            sleep(Duration::from_secs(3)).await;
        }
        // a hit of each instance before it knows
        assert!((LIMIT..=LIMIT + 3).contains(&taken), "{mode}: {taken}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_each_instance_counts_by_itself_is_reset_at_all_of_them() {
    for limit in [
        "requests: 60, per: 1m, coordination: split",
        "requests: 20, per: 1h, coordination: local",
        "requests: 60, per: 1h, share: {}",
    ] {
        let (_, instances) = fleet(3, limit, Capabilities::All).await;
        // those that split a limit begin with a window
        sleep(Duration::from_secs(45)).await;
        for _ in 0..2 {
            let mut admitted = 0;
            for instance in &instances {
                let here = instance.exhaust("tenant", "a").await;
                // a pool gives all of it to the first one that asks
                assert!(here > 0 || limit.contains("share"), "{limit}");
                admitted += here;
            }
            assert_eq!(admitted, LIMIT, "{limit}");
            instances[1].reset("tenant", "a").await.expect("it is reset");
            sleep(Duration::from_secs(2)).await;
        }
    }
}

/// The tiers beside a pool are counters as others are: instances forget what they know of them.
#[tokio::test(start_paused = true)]
async fn tiers_beside_a_shared_capacity_are_reset_with_it() {
    for mode in ["strict", "lease", "interval"] {
        let tiers = "{requests: 600, per: 1h, share: {}}, {requests: 60, per: 1d, algorithm: sliding_window}";
        let limit = format!("tiers: [{tiers}], coordination: {mode}");
        let (_, instances) = fleet(3, &limit, Capabilities::All).await;
        let mut admitted = 0;
        for round in 0..3 {
            for instance in &instances {
                admitted += instance.exhaust("tenant", "a").await;
                // until the others know
                sleep(Duration::from_secs(2)).await;
            }
            assert!((LIMIT..=LIMIT + 3).contains(&admitted), "{mode}, round {round}: {admitted}");
            instances[round % 3].reset("tenant", "a").await.expect("it is reset");
            for (i, instance) in instances.iter().enumerate() {
                assert!(instance.takes("tenant", "a", 1).await, "{mode}, round {round}, instance {i}");
            }
            admitted = 3;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_store_nothing_changes() {
    for mode in ["strict", "lease", "interval"] {
        let limit = format!("requests: 60, per: 1h, coordination: {mode}");
        let (shared, instances) = fleet(2, &limit, Capabilities::All).await;
        let admitted = instances[0].exhaust("tenant", "a").await;
        assert_eq!(admitted, LIMIT);
        sleep(Duration::from_secs(2)).await;
        shared.set(Condition::Down);
        let reset = instances[0].reset("tenant", "a").await;
        assert!(matches!(reset, Err(ResetError::Limit(_))), "{reset:?}");
        shared.set(Condition::Up);
        sleep(Duration::from_secs(5)).await;
        for instance in &instances {
            instance.takes("tenant", "a", 0).await;
            sleep(Duration::from_secs(1)).await;
            assert_eq!(instance.exhaust("tenant", "a").await, 0, "{mode}");
        }
    }
}

/// It reports its hits, and returns its lease, only when it has heard of the reset.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_at_any_instance_get_what_a_reset_has_freed() {
    for mode in ["strict", "lease", "interval"] {
        // twenty seconds of the minute have passed
        let limit = format!("requests: 60, per: 1m, coordination: {mode}");
        let (_, instances) = fleet(2, &limit, Capabilities::All).await;
        for Instance { limiter, clock } in &instances {
            tokio::spawn(Limiter::ask_store(limiter, Arc::new(clock.clone()), None));
        }
        for instance in &instances {
            instance.exhaust("tenant", "a").await;
        }
        let wait = async |instance: &SharedInstance| {
            let entries = [Entry { key: "tenant", value: "a" }];
            let request = Request::of("shop", &entries);
            let Instance { limiter, clock } = instance;
            let acquired =
                limiter.acquire(&request, Period::from_secs(60), clock, |_, acquired| acquired.clone());
            acquired.await.expect("an answer")
        };
        let reset = async {
            sleep(Duration::from_secs(10)).await;
            instances[0].reset("tenant", "a").await
        };
        let (at_one, at_other, reset) = tokio::join!(wait(&instances[0]), wait(&instances[1]), reset);
        reset.expect("it is reset");
        for acquired in [at_one, at_other] {
            assert!(acquired.rejection.is_none(), "{mode}: {acquired:?}");
            let expected = Period::from_secs(10)..Period::from_secs(20);
            assert!(expected.contains(&acquired.waited), "{mode}: {}", acquired.waited);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_was_cut_off_reports_nothing_of_before() {
    for mode in ["lease", "interval"] {
        let limit = format!("requests: 60, per: 1h, coordination: {mode}");
        let (_, instances) = fleet(2, &limit, Capabilities::All).await;
        for _ in 0..30 {
            assert!(instances[1].takes("tenant", "a", 1).await);
            sleep(Duration::from_millis(5)).await;
        }
        instances[1].limiter.store().remote().partition(true);
        for _ in 0..10 {
            instances[1].takes("tenant", "a", 1).await;
        }
        instances[0].reset("tenant", "a").await.expect("it is reset");
        sleep(Duration::from_mins(2)).await;
        instances[1].limiter.store().remote().partition(false);
        sleep(Duration::from_secs(10)).await;
        let taken = instances[0].exhaust("tenant", "a").await;
        sleep(Duration::from_secs(3)).await;
        let others = instances[1].exhaust("tenant", "a").await;
        assert!((LIMIT - 10..=LIMIT + 2).contains(&(taken + others)), "{mode}: {taken} and {others}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_lose_their_places_by_age() {
    let limit = "in_flight: 4";
    let (_, instances) = fleet(2, limit, Capabilities::All).await;
    assert_eq!(instances[0].exhaust("tenant", "a").await, 4);
    sleep(Duration::from_secs(30)).await;
    let entries = [Entry { key: "tenant", value: "a" }];
    let free = async |seconds| {
        let Instance { limiter, clock } = &instances[1];
        let outcome = limiter.reset("shop", &entries, Some(Period::from_secs(seconds)), clock).await;
        outcome.expect("it is reset").places
    };
    assert_eq!(free(60).await, 0);
    assert!(!instances[1].takes("tenant", "a", 1).await);
    assert_eq!(free(20).await, 4);
    assert_eq!(instances[1].exhaust("tenant", "a").await, 4);
    let outcome = instances[0].reset("tenant", "a").await.expect("it is reset");
    assert_eq!(outcome.places, 4);
    assert_eq!(instances[0].exhaust("tenant", "a").await, 4);
}

/// Memcached's kind: instances hear nothing of each other.
#[tokio::test(start_paused = true)]
async fn a_store_without_messages_is_reset_from_one_instance() {
    let limit = "requests_per_unit: 60, unit: hour, coordination: interval";
    let (_, instances) = fleet(2, limit, Capabilities::SingleFixedWindow).await;
    assert_eq!(instances[0].exhaust("tenant", "a").await, LIMIT);
    sleep(Duration::from_secs(2)).await;
    let outcome = instances[0].reset("tenant", "a").await.expect("it is reset");
    assert!(!outcome.is_everywhere);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(instances[0].exhaust("tenant", "a").await, LIMIT);
}

#[tokio::test(start_paused = true)]
async fn in_memory_it_is_at_once() {
    for limit in LIMITS.into_iter().chain(["requests: 60, per: 1h, share: {}"]) {
        let limiter = Limiter::new(MemoryStore::new(1_000), Arc::default(), DecisionSettings::default());
        limiter.load(rules(limit));
        let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_400));
        let instance = Instance { limiter: Arc::new(limiter), clock };
        for _ in 0..3 {
            assert_eq!(instance.exhaust("tenant", "a").await, LIMIT, "{limit}");
            let outcome = instance.reset("tenant", "a").await.expect("it is reset");
            assert_eq!(outcome, ResetOutcome { counters: 1, places: 0, is_everywhere: false });
        }
        let unknown = instance.reset("user", "a").await;
        assert!(matches!(unknown, Err(ResetError::NoLimit)), "{unknown:?}");
    }
}

/// The second one clears the counter while the first one has ended.
#[tokio::test(start_paused = true)]
async fn resets_that_overlap_keep_the_limit() {
    for gap in [0, 300, 900, 1_400] {
        let (_, instances) = fleet(3, "requests: 60, per: 1h, coordination: lease", Capabilities::All).await;
        let load = Load::start(&instances);
        sleep(Duration::from_secs(6)).await;
        let second = async {
            sleep(Duration::from_millis(gap)).await;
            instances[1].reset("tenant", "a").await
        };
        let (first, second) = tokio::join!(instances[0].reset("tenant", "a"), second);
        assert!(first.is_ok() && second.is_ok());
        let before = load.admitted();
        sleep(Duration::from_secs(15)).await;
        let after = load.admitted() - before;
        assert!(after <= LIMIT, "{gap} ms: {after}");
    }
}

/// The end of the reset does not find the counter by the rules of then.
#[tokio::test(start_paused = true)]
async fn a_reload_in_the_midst_of_a_reset_leaves_no_counter_strict() {
    let limit = "requests: 6000, per: 1h, coordination: lease";
    let (_, instances) = fleet(2, limit, Capabilities::All).await;
    let (one, other) = (&instances[0], &instances[1]);
    for _ in 0..50 {
        assert!(other.takes("tenant", "a", 1).await);
    }
    let reload = async {
        sleep(Duration::from_millis(1_150)).await;
        other.limiter.load(RuleSet::new(&[], KeyHasher::random()));
    };
    let (reset, ()) = tokio::join!(one.reset("tenant", "a"), reload);
    reset.expect("it is reset");
    sleep(Duration::from_secs(1)).await;
    other.limiter.load(rules(limit));
    sleep(Duration::from_secs(10)).await;
    let before = other.limiter.store().remote().commands();
    for _ in 0..200 {
        assert!(other.takes("tenant", "a", 1).await);
        sleep(Duration::from_millis(5)).await;
    }
    let commands = other.limiter.store().remote().commands() - before;
    assert!(commands < 100, "{commands}");
}
