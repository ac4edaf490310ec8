//! Runs one scenario: several instances in one process, and the requests that they receive.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use weir_coordinate::simulated::{Random, SimulatedClock, SimulatedRemote, SimulatedStore};
use weir_limit::{Descriptor, Entry, Matched, Period, Request, RuleSet, Scope, Timestamp};
use weir_store::{Store, clock::Clock as _};

use super::{
    arrivals::{SimulatedArrival, arrivals},
    scenario::{DOMAIN, Scenario, choose},
};

#[derive(Clone, Debug)]
pub struct Instance {
    /// Its index, from 0.
    pub number: usize,
    pub remote: SimulatedRemote,
    pub clock: SimulatedClock,
}

/// The decision on one request. Times are those of the exact clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedDecision {
    /// The number of its key, from 0.
    pub key: u32,
    pub arrived: Timestamp,
    pub decided: Timestamp,
    /// Whether it was admitted; none if there was no decision.
    pub admitted: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationOutcome {
    /// The decisions, in the order in which they were made.
    pub decisions: Vec<SimulatedDecision>,
    /// Calls to the store from the first request on, without heartbeats.
    pub calls: u64,
    /// Decisions made without the store, since it did not reply in time.
    pub fallbacks: u64,
}

/// The instances of a scenario before it begins, and the exact clock.
pub(super) struct Fleet {
    pub(super) instances: Vec<Instance>,
    pub(super) clock: SimulatedClock,
    pub(super) random: Random,
}

/// Runs `scenario` on the stores that `make` creates, one per instance, which all use `rules`. At the end, `fallbacks`
/// returns how many decisions a store made alone. `progress` gets the completed share, 0 to 1. Must not be called
/// within a runtime: it creates its own, whose clock is paused.
pub fn run<S: Store>(
    scenario: &Scenario,
    rules: &Arc<RuleSet>,
    make: impl Fn(Instance) -> S,
    fallbacks: impl Fn(&S) -> u64,
    progress: impl FnMut(f64),
) -> std::io::Result<SimulationOutcome> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(simulate(scenario, rules, make, fallbacks, progress)))
}

async fn simulate<S: Store>(
    scenario: &Scenario,
    rules: &Arc<RuleSet>,
    make: impl Fn(Instance) -> S,
    fallbacks: impl Fn(&S) -> u64,
    mut progress: impl FnMut(f64),
) -> SimulationOutcome {
    let Fleet { instances, clock, mut random } = Fleet::start(scenario);
    let stores: Vec<Arc<S>> = instances.iter().map(|instance| Arc::new(make(instance.clone()))).collect();
    sleep(scenario.warm_up().into()).await;
    let calls = || instances.iter().map(|instance| instance.remote.calls()).sum::<u64>();
    let calls_before = calls();
    let send = |i: usize, key| {
        let (store, rules) = (Arc::clone(&stores[i]), Arc::clone(rules));
        decide(store, rules, key, clock.clone(), instances[i].clock.clone())
    };
    let decisions = offer(scenario, &mut random, send, || {}, &mut progress).await;
    let fallbacks = stores.iter().map(|store| fallbacks(store)).sum();
    SimulationOutcome { decisions, calls: calls() - calls_before, fallbacks }
}

/// `send` makes the future of a request, for an instance's number and a key. Calls `after_each` when some were sent.
pub(super) async fn offer<F: Future<Output = SimulatedDecision> + Send + 'static>(
    scenario: &Scenario,
    random: &mut Random,
    send: impl Fn(usize, u32) -> F,
    after_each: impl Fn(),
    progress: &mut impl FnMut(f64),
) -> Vec<SimulatedDecision> {
    let started = Instant::now();
    let end = scenario.end().since(scenario.begin()).as_nanos() as f64 / 1e9;
    let spreads = [false, true].map(|is_late| scenario.skew.spread(scenario.instances, is_late));
    let mut decisions = Vec::new();
    let mut waiting = JoinSet::new();
    let mut arrivals = arrivals(scenario, random.fork()).peekable();
    while let Some(SimulatedArrival { at, .. }) = arrivals.peek().copied() {
        // timers have a resolution of 1 ms: requests within a millisecond arrive at its end
        let tick = (at * 1e3).ceil();
        sleep_until(started + Duration::from_millis(tick as u64)).await;
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at * 1e3 <= tick) {
            let spread = &spreads[usize::from(arrival.at >= end / 2.0)];
            waiting.spawn(send(choose(spread, random), arrival.key));
        }
        // lets all of the tasks start
        tokio::task::yield_now().await;
        after_each();
        while let Some(decision) = waiting.try_join_next() {
            decisions.extend(decision);
        }
        progress(arrivals.peek().map_or(1.0, |next| (next.at / end).min(1.0)));
    }
    while let Some(decision) = waiting.join_next().await {
        decisions.extend(decision);
    }
    decisions
}

// === impl Fleet ===

impl Fleet {
    pub(super) fn start(scenario: &Scenario) -> Self {
        let mut random = Random::new(scenario.seed);
        let clock = SimulatedClock::new(Timestamp::from_nanos(
            scenario.begin().as_nanos() - scenario.warm_up().as_nanos(),
        ));
        let shared = SimulatedStore::new(clock.clone(), random.next());
        let instances = (0..scenario.instances)
            .map(|number| Instance {
                number,
                remote: shared.connect(scenario.network),
                clock: clock.skewed(error(scenario.clock_skew, &mut random)),
            })
            .collect();
        Self { instances, clock, random }
    }
}

async fn decide<S: Store>(
    store: Arc<S>,
    rules: Arc<RuleSet>,
    key: u32,
    exact: SimulatedClock,
    own: SimulatedClock,
) -> SimulatedDecision {
    let arrived = exact.now();
    let value = format!("value{key}");
    let entry = Entry { key: "key", value: &value };
    let descriptor = Descriptor { entries: [entry].into_iter().collect(), ..Descriptor::default() };
    let request =
        Request { domain: DOMAIN, descriptors: [descriptor].into_iter().collect(), ..Request::default() };
    let matched = Matched::new(&rules, &request);
    let decisions = store.take(&matched.checks, Scope::Descriptor, own.now()).await;
    let admitted = decisions.ok().and_then(|decisions| decisions.first().map(|decision| !decision.over));
    SimulatedDecision { key, arrived, decided: exact.now(), admitted }
}

/// Returns a random clock error of up to `most`, in nanoseconds.
fn error(most: Period, random: &mut Random) -> i64 {
    let most = i64::try_from(most.as_nanos()).unwrap_or(i64::MAX) as f64;
    (most * (2.0 * random.unit() - 1.0)) as i64
}
