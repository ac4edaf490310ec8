//! A random case: instances in front of one store, their requests, and faults.

use std::{sync::Arc, time::Duration};

use proptest::{collection::vec, prelude::*};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use weir::simulate::{Arrivals, Scenario, SimulatedDecision, SimulationOutcome, Skew};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Condition, Network, Random, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Coordination, Descriptor, Entry, Matched, OnStoreFailure, OverLimitPolicy, Period, Request,
    RuleCoordination, RuleSet, Scope, Tier, Timestamp,
};
use weir_store::{Store as _, clock::Clock as _, remote::Target};

/// The time that the instances run before the first request.
const WARM_UP: Duration = Duration::from_secs(5);

/// The longest time of a decision: the budget, and a tick of the clock.
pub(crate) const BUDGET: Period = Period::from_millis(16);

/// One case: instances, load and faults.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) instances: usize,
    pub(crate) mode: Coordination,
    pub(crate) tier: Tier,
    pub(crate) failure: OnStoreFailure,
    /// Requests a millisecond, on average.
    pub(crate) rate: f64,
    /// The time during which requests arrive, in milliseconds.
    pub(crate) length: u64,
    pub(crate) network: Network,
    /// The largest error of the instances' clocks, in milliseconds.
    pub(crate) clock_skew: u32,
    pub(crate) seed: u64,
    /// Faults and their times, in milliseconds after the start.
    pub(crate) events: Vec<(u64, Event)>,
}

/// A fault, with its length in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// An instance dies with its state, and another takes its place at once.
    Crash(usize),
    /// The store is frozen.
    Frozen(u64),
    /// The store is down.
    Down(u64),
    /// The store rejects every command.
    Rejecting(u64),
    /// An instance loses the connection to the store.
    Partition(usize, u64),
    /// A replica takes over that lacks the writes of this time.
    FailOver(u64),
}

/// The result of a case.
pub(crate) struct CaseResult {
    pub(crate) outcome: SimulationOutcome,
    /// Hits that the store lost in failovers.
    pub(crate) lost: u64,
    /// Hits whose delivery is unknown, and hits that were never reported.
    pub(crate) unknown: u64,
    /// Hits that the store counts after the final flush of all instances, in the last window and in the one before the
    /// first.
    pub(crate) counted: u64,
    /// The process that made each of the decisions.
    pub(crate) by: Vec<usize>,
    /// Processes that died, and when, in milliseconds after the start.
    pub(crate) died: Vec<(usize, u64)>,
}

type SimulatedInstance = Coordinated<SimulatedRemote>;

/// The running instances, and those that have died.
struct Fleet {
    store: SimulatedStore,
    clock: SimulatedClock,
    instances: Vec<(Arc<SimulatedInstance>, SimulatedRemote, SimulatedClock)>,
    died: Vec<Arc<SimulatedInstance>>,
    random: Random,
}

pub(crate) fn networks() -> impl Strategy<Value = Network> {
    (0..12_u64, 0..10_u64, 0.0..0.1, 0..80_u64, 0.0..0.15, 0.0..0.15, any::<bool>()).prop_map(
        |(round_trip, jitter, spikes, spike, lost_requests, lost_replies, reorders)| Network {
            round_trip: Duration::from_millis(round_trip),
            jitter: Duration::from_millis(jitter),
            spikes,
            spike: Duration::from_millis(spike),
            lost_requests,
            lost_replies,
            reorders,
            timeout: Duration::from_millis(100),
        },
    )
}

pub(crate) fn events(length: u64, failovers: bool) -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        3 => (0..8_usize).prop_map(Event::Crash),
        1 => (1..600_u64).prop_map(Event::Frozen),
        1 => (1..600_u64).prop_map(Event::Down),
        1 => (1..300_u64).prop_map(Event::Rejecting),
        2 => (0..8_usize, 1..600_u64).prop_map(|(i, millis)| Event::Partition(i, millis)),
        if failovers { 2 } else { 0 } => (1..500_u64).prop_map(Event::FailOver),
    ];
    vec((0..length, event), 0..6).prop_map(|mut events| {
        events.sort_by_key(|(at, _)| *at);
        events
    })
}

impl Case {
    /// Returns the scenario that the metrics are computed for.
    pub(crate) fn scenario(&self) -> Scenario {
        Scenario {
            instances: self.instances,
            keys: 1,
            tier: self.tier.clone(),
            load: 1.0,
            arrivals: Arrivals::Random,
            skew: Skew::Even,
            network: self.network,
            clock_skew: Period::default(),
            windows: u32::try_from(self.length * 1_000_000 / self.tier.period.as_nanos() + 2).expect("few"),
            seed: self.seed,
        }
    }

    /// Returns the time at which requests begin: the start of the first window that counts.
    pub(crate) fn start_at(&self) -> Timestamp {
        Timestamp::from_secs(1_700_000_000).window_end(self.tier.period)
    }

    pub(crate) fn run(&self) -> CaseResult {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(self.run_async())
    }

    async fn run_async(&self) -> CaseResult {
        let mut random = Random::new(self.seed);
        let warm_up = u64::try_from(WARM_UP.as_nanos()).expect("short");
        let clock = SimulatedClock::new(Timestamp::from_nanos(self.start_at().as_nanos() - warm_up));
        let store = SimulatedStore::new(clock.clone(), random.next());
        store.keep_writes(Period::from_secs(1));
        let mut fleet = Fleet { store, clock, instances: Vec::new(), died: Vec::new(), random };
        for number in 0..self.instances {
            let instance = fleet.start(self, number);
            fleet.instances.push(instance);
        }
        sleep(WARM_UP).await;

        let begun = Instant::now();
        let rules =
            self.scenario().rules(RuleCoordination { mode: Some(self.mode), ..RuleCoordination::default() });
        let mut requests = JoinSet::new();
        let (mut lost, mut died) = (0, Vec::new());
        let (mut events, mut next) = (self.events.iter().peekable(), 0.0);
        for tick in 0..self.length {
            sleep_until(begun + Duration::from_millis(tick)).await;
            while let Some((_, event)) = events.next_if(|(at, _)| *at <= tick) {
                let before = fleet.died.len();
                lost += fleet.apply(self, *event);
                died.extend(fleet.died[before..].iter().map(|instance| (name(instance), tick)));
            }
            while next <= tick as f64 {
                next += fleet.random.exponential(1.0 / self.rate);
                let (instance, _, clock) = fleet.choose();
                let process = name(&instance);
                let request = send(instance, clock, fleet.clock.clone(), Arc::clone(&rules));
                requests.spawn(async move { (process, request.await) });
            }
        }
        let (by, decisions) = requests.join_all().await.into_iter().unzip();
        // wait until late calls arrive and pending hits are reported
        sleep(Duration::from_secs(2)).await;
        for (instance, ..) in &fleet.instances {
            instance.close().await;
        }
        let all = fleet.died.iter().chain(fleet.instances.iter().map(|(instance, ..)| instance));
        let unknown = all
            .map(|instance| {
                instance.coordination_metrics().hits.delivery_unknown.get()
                    + instance.coordination_metrics().hits.unreported.get()
            })
            .sum();
        let path = "simulated|key=value".into();
        let target =
            Target { path, tiers: [self.tier.clone()].into(), over_limit_policy: OverLimitPolicy::Ignore };
        // before the first reply an instance uses its own clock, which may be in the previous window
        let before = Timestamp::from_nanos(self.start_at().as_nanos() - 1);
        let counted = [before, fleet.clock.now()].map(|at| fleet.store.used(&target, at)).iter().sum();
        CaseResult {
            outcome: SimulationOutcome { decisions, calls: 0, fallbacks: 0 },
            lost,
            unknown,
            counted,
            by,
            died,
        }
    }
}

impl Fleet {
    fn start(
        &mut self,
        case: &Case,
        number: usize,
    ) -> (Arc<SimulatedInstance>, SimulatedRemote, SimulatedClock) {
        let remote = self.store.connect(case.network);
        let skew = (self.random.unit() * 2.0 - 1.0) * f64::from(case.clock_skew) * 1e6;
        let clock = self.clock.skewed(skew as i64);
        let settings = CoordinationSettings {
            // not that of an instance that died
            instance: format!("{number}-{}", self.instances.len() + self.died.len()),
            on_store_failure: case.failure,
            max_counters: 64,
            ..CoordinationSettings::default()
        };
        let instance = Coordinated::new(remote.clone(), Arc::new(clock.clone()), settings);
        (Arc::new(instance), remote, clock)
    }

    /// Chooses the instance of the next request: the first one for half of them.
    fn choose(&mut self) -> (Arc<SimulatedInstance>, SimulatedRemote, SimulatedClock) {
        let n = self.instances.len();
        let i = if self.random.chance(0.5) { 0 } else { (self.random.unit() * n as f64) as usize };
        self.instances[i.min(n - 1)].clone()
    }

    /// Applies `event`. Returns how many hits the store has lost.
    fn apply(&mut self, case: &Case, event: Event) -> u64 {
        let for_a_while = |condition, millis| {
            let stopped = self.store.clone();
            stopped.set(condition);
            tokio::spawn(async move {
                sleep(Duration::from_millis(millis)).await;
                stopped.set(Condition::Up);
            });
        };
        match event {
            Event::Crash(i) => {
                let i = i % self.instances.len();
                let fresh = self.start(case, i);
                let (instance, remote, _) = std::mem::replace(&mut self.instances[i], fresh);
                // no further call of it arrives
                remote.partition(true);
                self.died.push(instance);
            }
            Event::Frozen(millis) => for_a_while(Condition::Frozen, millis),
            Event::Down(millis) => for_a_while(Condition::Down, millis),
            Event::Rejecting(millis) => for_a_while(Condition::Rejecting, millis),
            Event::Partition(i, millis) => {
                let remote = self.instances[i % self.instances.len()].1.clone();
                remote.partition(true);
                tokio::spawn(async move {
                    sleep(Duration::from_millis(millis)).await;
                    remote.partition(false);
                });
            }
            Event::FailOver(millis) => return self.store.fail_over(Period::from_millis(millis)),
        }
        0
    }
}

/// Returns a number that identifies a process among all, dead ones included.
fn name(instance: &Arc<SimulatedInstance>) -> usize {
    Arc::as_ptr(instance).addr()
}

async fn send(
    instance: Arc<SimulatedInstance>,
    clock: SimulatedClock,
    right: SimulatedClock,
    rules: Arc<RuleSet>,
) -> SimulatedDecision {
    let arrived = right.now();
    let entry = Entry { key: "key", value: "value" };
    let descriptor = Descriptor { entries: [entry].into_iter().collect(), ..Descriptor::default() };
    let request = Request { domain: "simulated", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    let matched = Matched::new(&rules, &request);
    let decisions = instance.take(&matched.checks, Scope::Descriptor, clock.now()).await;
    SimulatedDecision {
        key: 0,
        arrived,
        decided: right.now(),
        admitted: decisions.ok().map(|decisions| !decisions[0].over),
    }
}
