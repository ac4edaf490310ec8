//! Decisions that wait for the store, while tasks yield at random, some decisions are dropped while they wait, and
//! replies arrive around the end of the budget.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use proptest::{collection::vec, prelude::*, sample::select};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, Random, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OverLimitPolicy, Period, Request,
    Rule, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
};
use weir_store::{
    Store as _,
    clock::Clock as _,
    remote::{Command, Heartbeat, Members, Remote, RemoteError, Replies, Target},
};

/// Sixteen concurrent calls with decisions, and two with reports.
const MOST_CALLS: usize = 18;

/// A handle whose calls yield and wait at random.
struct Unsteady {
    remote: SimulatedRemote,
    random: Mutex<Random>,
    calls: AtomicUsize,
    most_calls: Arc<AtomicUsize>,
    /// Whether calls yield and wait no more.
    is_calm: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
struct Ask {
    /// Milliseconds after the previous one.
    after: u64,
    key: usize,
    yields: usize,
    /// Milliseconds after which the caller goes away.
    leaves_after: Option<u64>,
}

/// What happens, but for the order of the tasks.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    mode: Coordination,
    limit: u32,
    /// The longest that a decision waits, in milliseconds.
    pub(crate) budget: u64,
    asks: Vec<Ask>,
    seed: u64,
}

const KEYS: [&str; 3] = ["x", "y", "z"];
/// The longest that a decision waits, in milliseconds.
pub(crate) const BUDGET: u64 = 15;
const DAY: Period = Period::from_secs(86_400);

impl Unsteady {
    async fn disturb(&self) {
        if self.is_calm.load(Ordering::Relaxed) {
            return;
        }
        let (yields, millis) = {
            let mut random = self.random.lock();
            (
                random.next() % 5,
                [0, 0, 0, 0, 1, 6, 7, 8, 9, 40][usize::try_from(random.next() % 10).expect("few")],
            )
        };
        for _ in 0..yields {
            yield_now().await;
        }
        sleep(Duration::from_millis(millis)).await;
    }
}

impl Remote for Unsteady {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_calls.fetch_max(calls, Ordering::Relaxed);
        self.disturb().await;
        let replies = self.remote.call(commands).await;
        self.disturb().await;
        self.calls.fetch_sub(1, Ordering::Relaxed);
        replies
    }

    async fn heartbeat(&self, heartbeat: Heartbeat<'_>) -> Result<Members, RemoteError> {
        self.remote.heartbeat(heartbeat).await
    }
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let after = prop_oneof![6 => Just(0_u64), 2 => 1..4_u64, 1 => 5..40_u64];
    let leaves = prop_oneof![3 => Just(None), 1 => (0..16_u64).prop_map(Some)];
    let ask = (after, 0..KEYS.len(), 0..4_usize, leaves).prop_map(|(after, key, yields, leaves_after)| Ask {
        after,
        key,
        yields,
        leaves_after,
    });
    let modes = select(&[Coordination::Strict, Coordination::Lease][..]);
    (modes, prop_oneof![1..20_u32, Just(100_000)], vec(ask, 1..120), any::<u64>())
        .prop_map(|(mode, limit, asks, seed)| Case { mode, limit, budget: BUDGET, asks, seed })
}

fn rules(limit: u32) -> RuleSet {
    let tier = Tier::fixed_window(limit, DAY);
    let limit =
        Limit::Tiers { tiers: [tier].into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore };
    let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("k", Values::Any) };
    RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::with_secret([1, 2]))
}

/// Takes one hit. Returns whether it was rejected.
async fn hit(store: &Coordinated<Unsteady>, rules: &RuleSet, key: usize, now: Timestamp) -> bool {
    let descriptor = Descriptor {
        entries: [Entry { key: "k", value: KEYS[key] }].into_iter().collect(),
        ..Descriptor::default()
    };
    let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    let matched = Matched::new(rules, &request);
    store.take(&matched.checks, Scope::Descriptor, now).await.expect("it always decides")[0].over
}

/// Runs `case`, in which no decision may wait longer than `longest`. After `calm`, tasks run as soon as they can, so
/// that time passes only while all of them wait.
pub(crate) async fn run(case: &Case, longest: Duration, calm: impl FnOnce()) -> Result<(), TestCaseError> {
    let clock = SimulatedClock::new(Timestamp::from_secs(1_699_999_200));
    let shared = SimulatedStore::new(clock.clone(), case.seed);
    let network =
        Network { round_trip: Duration::ZERO, timeout: Duration::from_secs(10), ..Network::default() };
    let (most_calls, is_calm) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let remote = Unsteady {
        remote: shared.connect(network),
        random: Mutex::new(Random::new(case.seed)),
        calls: AtomicUsize::new(0),
        most_calls: Arc::clone(&most_calls),
        is_calm: Arc::clone(&is_calm),
    };
    let settings = CoordinationSettings {
        coordination: case.mode,
        budget: Period::from_millis(case.budget),
        ..CoordinationSettings::default()
    };
    let store = Arc::new(Coordinated::new(remote, Arc::new(clock.clone()), settings));
    sleep(Duration::from_millis(2_500)).await;
    let rules = Arc::new(rules(case.limit));
    let mut tasks = Vec::new();
    for ask in case.asks.clone() {
        sleep(Duration::from_millis(ask.after)).await;
        let (store, rules, clock) = (Arc::clone(&store), Arc::clone(&rules), clock.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..ask.yields {
                yield_now().await;
            }
            let begun = Instant::now();
            let decision = hit(&store, &rules, ask.key, clock.now());
            let over = match ask.leaves_after {
                Some(millis) => timeout(Duration::from_millis(millis), decision).await.ok(),
                None => Some(decision.await),
            };
            (ask.key, over, begun.elapsed())
        }));
    }
    let mut admitted = [0_u64; 3];
    for task in tasks {
        let (key, over, waited) = task.await.expect("no panic");
        prop_assert!(waited <= longest, "waited {waited:?}");
        admitted[key] += u64::from(over == Some(false));
    }
    // everything has arrived, and what is not used was returned
    sleep(Duration::from_secs(30)).await;
    is_calm.store(true, Ordering::Relaxed);
    calm();
    // a store that seemed silent replies to a heartbeat
    sleep(Duration::from_millis(2_500)).await;
    let fallbacks = store.coordination_metrics().decisions.fallback.get();
    for (key, admitted) in admitted.iter_mut().enumerate() {
        *admitted += u64::from(!hit(&store, &rules, key, clock.now()).await);
    }
    // no slot of a call and no wake-up is lost
    prop_assert_eq!(store.coordination_metrics().decisions.fallback.get(), fallbacks);
    sleep(Duration::from_secs(1)).await;
    store.close().await;
    let metrics = store.coordination_metrics();
    let (unknown, stranded) = (metrics.hits.delivery_unknown.get(), metrics.hits.stranded.get());
    for (key, value) in KEYS.iter().enumerate() {
        let tier = Tier::fixed_window(case.limit, DAY);
        let target = Target {
            path: format!("d|k={value}").into(),
            tiers: [tier].into_iter().collect(),
            over_limit_policy: OverLimitPolicy::Ignore,
        };
        let counted = shared.used(&target, clock.now());
        let admitted = admitted[key];
        prop_assert!(
            counted + unknown >= admitted,
            "{counted} counted, {admitted} admitted, {unknown} unknown"
        );
        prop_assert!(
            counted <= admitted + unknown + stranded,
            "{counted} counted, {admitted} admitted, {unknown} unknown, {stranded} stranded"
        );
    }
    prop_assert!(most_calls.load(Ordering::Relaxed) <= MOST_CALLS + KEYS.len(), "{most_calls:?} calls");
    Ok(())
}
