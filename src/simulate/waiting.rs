//! Runs one scenario of callers that wait: a line at each instance, in front of one simulated store.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use weir_coordinate::simulated::{Random, SimulatedClock, SimulatedRemote};
use weir_limit::{Descriptor, Entry, Period, Request, RuleSet};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{MemoryStore, Store, WaitBounds, clock::Clock as _};

use super::{
    SimulatedDecision, SimulationOutcome,
    run::{Fleet, Instance, offer},
    scenario::{DOMAIN, LONGEST_SLEEP, Scenario},
};

pub(super) const START: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingOutcome {
    /// What became of the callers: each was decided when it was admitted or told.
    pub simulated: SimulationOutcome,
    /// The most calls to the store of all instances in the first 10 ms of a period, but for the first period.
    pub calls_at_start: u64,
}

/// Runs `scenario` as [`run`](super::run()) does, with callers that wait for up to `max_wait`, in an unbounded line at
/// each instance. `rules` makes the rules of an instance. Must not be called within a runtime.
pub fn run_waiting<S: Store>(
    scenario: &Scenario,
    max_wait: Period,
    rules: impl Fn() -> RuleSet,
    make: impl Fn(Instance) -> S,
    fallbacks: impl Fn(&S) -> u64,
    progress: impl FnMut(f64),
) -> io::Result<WaitingOutcome> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(simulate(scenario, max_wait, rules, make, fallbacks, progress)))
}

async fn simulate<S: Store>(
    scenario: &Scenario,
    max_wait: Period,
    rules: impl Fn() -> RuleSet,
    make: impl Fn(Instance) -> S,
    fallbacks: impl Fn(&S) -> u64,
    mut progress: impl FnMut(f64),
) -> WaitingOutcome {
    let Fleet { instances, clock, mut random } = Fleet::start(scenario);
    let (started, mut phases) = (Instant::now(), Random::new(scenario.seed));
    let mut work = JoinSet::new();
    let mut limiter = |instance: &Instance| {
        let store = make(instance.clone());
        if let Some(room) = store.wait_room() {
            room.set_bounds(WaitBounds { per_key: usize::MAX, total: usize::MAX, longest: max_wait });
        }
        let limiter = Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default())
            .with_turns_of(random.next());
        limiter.load(rules());
        Arc::new(limiter)
    };
    let mut limiters = Vec::with_capacity(instances.len());
    for instance in &instances {
        limiters.push(limiter(instance));
        // their heartbeats are not in step
        sleep(Duration::from_nanos(phases.next() % 1_900_000_000 / instances.len() as u64)).await;
    }
    for (limiter, instance) in limiters.iter().zip(&instances) {
        let (clock, longest) = (Arc::new(instance.clock.clone()), scenario.rarer(LONGEST_SLEEP));
        work.spawn(Limiter::ask_store(limiter, clock, Some(longest)));
    }
    let (rung, clocks) = (Arc::new(Notify::new()), instances.iter().map(|instance| instance.clock.clone()));
    let served = limiters.iter().map(Arc::clone).zip(clocks).collect();
    work.spawn(serve(served, Arc::clone(&rung), scenario.rarer(LONGEST_SLEEP)));
    sleep_until(started + Duration::from(scenario.warm_up())).await;

    let remotes: Vec<_> = instances.iter().map(|instance| instance.remote.clone()).collect();
    let calls_before = calls(&remotes);
    let starts = tokio::spawn(count_starts(scenario.windows, scenario.tier.period, remotes.clone()));
    let send = |i: usize, key| {
        let (limiter, own) = (Arc::clone(&limiters[i]), instances[i].clock.clone());
        acquire(limiter, key, max_wait, clock.clone(), own)
    };
    let decisions = offer(scenario, &mut random, send, || rung.notify_one(), &mut progress).await;
    let calls_at_start = starts.await.unwrap_or_default();
    let fallbacks = limiters.iter().map(|limiter| fallbacks(limiter.store())).sum();
    let calls = calls(&remotes) - calls_before;
    WaitingOutcome { simulated: SimulationOutcome { decisions, calls, fallbacks }, calls_at_start }
}

/// Makes the turns of lines in memory, whose timers it looks at when it is `rung`, and after the `longest` sleep.
async fn serve<S: Store>(
    limiters: Vec<(Arc<Limiter<S>>, SimulatedClock)>,
    rung: Arc<Notify>,
    longest: Period,
) {
    loop {
        let mut next = longest;
        for (limiter, clock) in &limiters {
            limiter.serve_waiters(clock.now());
            let due = limiter.store().memory().and_then(MemoryStore::next_turn);
            next = due.map_or(next, |due| next.min(due.since(clock.now())));
        }
        tokio::select! {
            () = rung.notified() => {}
            () = sleep(next.into()) => {}
        }
    }
}

async fn acquire<S: Store>(
    limiter: Arc<Limiter<S>>,
    key: u32,
    max_wait: Period,
    exact: SimulatedClock,
    own: SimulatedClock,
) -> SimulatedDecision {
    let arrived = exact.now();
    let value = format!("value{key}");
    let descriptor = Descriptor {
        entries: [Entry { key: "key", value: &value }].into_iter().collect(),
        ..Descriptor::default()
    };
    let request =
        Request { domain: DOMAIN, descriptors: [descriptor].into_iter().collect(), ..Request::default() };
    let acquired =
        limiter.acquire(&request, max_wait, &own, |_, acquired| acquired.rejection.is_none()).await;
    SimulatedDecision { key, arrived, decided: exact.now(), admitted: acquired.ok() }
}

/// Returns the most calls in the first [`START`] of a period. The first one, in which nobody waits, begins now.
async fn count_starts(periods: u32, period: Period, remotes: Vec<SimulatedRemote>) -> u64 {
    let (begun, mut most) = (Instant::now(), 0);
    for i in 1..periods {
        let start = begun + Duration::from(period) * i;
        // just before, since those that ask at the start may be sooner than this
        if let Some(just_before) = start.checked_sub(Duration::from_millis(1)) {
            sleep_until(just_before).await;
        }
        let before = calls(&remotes);
        sleep_until(start + START.min(period.into())).await;
        most = most.max(calls(&remotes) - before);
    }
    most
}

fn calls(remotes: &[SimulatedRemote]) -> u64 {
    remotes.iter().map(SimulatedRemote::calls).sum()
}
