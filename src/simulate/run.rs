//! One way of coordination under one scenario: many instances in one process, and the requests that come to them.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::scenario::{Scenario, WARM_UP, choose};
use crate::{
    clock::Clock as _,
    limit::{Descriptor, Entry, Matched, Period, Request, RuleSet, Scope, Timestamp},
    store::{
        Store,
        simulated::{Random, SimulatedClock, SimulatedRemote, SimulatedStore},
    },
};

/// The domain of the one limit.
pub(super) const DOMAIN: &str = "simulated";

/// What an instance has of its own.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Which one, from 0.
    pub number: usize,
    /// Its way to the store.
    pub remote: SimulatedRemote,
    /// Its clock, which may be wrong.
    pub clock: SimulatedClock,
}

/// What became of one request. Times are by a clock that is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedDecision {
    /// When it came.
    pub came: Timestamp,
    /// When it was decided.
    pub decided: Timestamp,
    /// Whether it passed; none if there was no decision.
    pub passed: Option<bool>,
}

/// What became of all requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// In the order in which they were decided.
    pub decisions: Vec<SimulatedDecision>,
    /// Calls to the store, without heartbeats, from the first request on.
    pub calls: u64,
    /// Decisions that were made without the store, since it did not answer in time.
    pub fallbacks: u64,
}

/// Runs `scenario` on the stores that `make` makes, one for each instance, which all follow `rules`. LimitChecks
/// `fallbacks` at the end how many decisions each made without the store, and tells `progress` meanwhile how much is done,
/// 0 to 1.
///
/// It makes a runtime of its own, whose clock stands but for the simulation; so it must not be called within one.
pub fn run<S: Store>(
    scenario: &Scenario,
    rules: &Arc<RuleSet>,
    make: impl Fn(Instance) -> S,
    fallbacks: impl Fn(&S) -> u64,
    progress: impl FnMut(f64),
) -> std::io::Result<Outcome> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(simulate(scenario, rules, make, fallbacks, progress)))
}

async fn simulate<S: Store>(
    scenario: &Scenario,
    rules: &Arc<RuleSet>,
    make: impl Fn(Instance) -> S,
    fallbacks: impl Fn(&S) -> u64,
    mut progress: impl FnMut(f64),
) -> Outcome {
    let mut random = Random::new(scenario.seed);
    let clock = SimulatedClock::new(Timestamp::from_nanos(scenario.begin().as_nanos() - WARM_UP.as_nanos()));
    let shared = SimulatedStore::new(clock.clone(), random.next());
    let instances: Vec<Instance> = (0..scenario.instances)
        .map(|number| Instance {
            number,
            remote: shared.connect(scenario.network),
            clock: clock.skewed(error(scenario.clock_skew, &mut random)),
        })
        .collect();
    let stores: Vec<Arc<S>> = instances.iter().map(|instance| Arc::new(make(instance.clone()))).collect();
    sleep(WARM_UP.into()).await;
    let calls = || instances.iter().map(|instance| instance.remote.calls()).sum::<u64>();
    let calls_before = calls();

    let begun = Instant::now();
    let (rate, end) = (scenario.rate(), scenario.end().since(scenario.begin()));
    let end = end.as_nanos() as f64 / 1e9;
    let spread = scenario.skew.spread(stores.len());
    let mut decisions = Vec::new();
    let mut waiting = JoinSet::new();
    // seconds since the begin
    let mut next = random.exponential(1.0 / rate);
    while next < end {
        // timers know whole milliseconds: what comes within one comes at its end
        let tick = (next * 1e3).ceil();
        sleep_until(begun + Duration::from_millis(tick as u64)).await;
        while next * 1e3 <= tick && next < end {
            let i = choose(&spread, &mut random);
            let (store, rules) = (Arc::clone(&stores[i]), Arc::clone(rules));
            waiting.spawn(decide(store, rules, clock.clone(), instances[i].clock.clone()));
            next += random.exponential(1.0 / rate);
        }
        // by when all of them have begun
        tokio::task::yield_now().await;
        while let Some(decision) = waiting.try_join_next() {
            decisions.extend(decision);
        }
        progress((next / end).min(1.0));
    }
    while let Some(decision) = waiting.join_next().await {
        decisions.extend(decision);
    }
    let fallbacks = stores.iter().map(|store| fallbacks(store)).sum();
    Outcome { decisions, calls: calls() - calls_before, fallbacks }
}

/// One request, from its coming to its decision.
async fn decide<S: Store>(
    store: Arc<S>,
    rules: Arc<RuleSet>,
    right: SimulatedClock,
    own: SimulatedClock,
) -> SimulatedDecision {
    let came = right.now();
    let entry = Entry { key: "key", value: "value" };
    let descriptor = Descriptor { entries: [entry].into_iter().collect(), ..Descriptor::default() };
    let request =
        Request { domain: DOMAIN, descriptors: [descriptor].into_iter().collect(), ..Request::default() };
    let matched = Matched::new(&rules, &request);
    let taken = store.take(&matched.checks, Scope::Descriptor, own.now()).await;
    let passed = taken.ok().and_then(|taken| taken.first().map(|taken| !taken.over));
    SimulatedDecision { came, decided: right.now(), passed }
}

/// How wrong a clock is that is wrong by up to `most`, in nanoseconds.
fn error(most: Period, random: &mut Random) -> i64 {
    let most = i64::try_from(most.as_nanos()).unwrap_or(i64::MAX) as f64;
    (most * (2.0 * random.unit() - 1.0)) as i64
}
