//! Instances in front of one store, requests that come, and what goes wrong meanwhile.

use std::{sync::Arc, time::Duration};

use proptest::{collection::vec, prelude::*};
use smallvec::smallvec;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use weir::{
    clock::Clock as _,
    limit::{
        Coordination, Descriptor, Entry, Matched, OnStoreFailure, OverLimitPolicy, Period, Request,
        RuleCoordination, RuleSet, Scope, Tier, Timestamp,
    },
    simulate::{Outcome, Scenario, SimulatedDecision, Skew},
    store::{
        Store as _,
        coordinated::{Coordinated, CoordinationSettings},
        remote::Target,
        simulated::{Condition, Network, Random, SimulatedClock, SimulatedRemote, SimulatedStore},
    },
};

/// How long the instances run before that.
const WARM_UP: Duration = Duration::from_secs(5);

/// No decision may take longer: the budget, and a tick of the clock.
pub(crate) const BUDGET: Period = Period::from_millis(16);

/// What happens.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) instances: usize,
    pub(crate) mode: Coordination,
    pub(crate) tier: Tier,
    pub(crate) failure: OnStoreFailure,
    /// Requests a millisecond, on average.
    pub(crate) rate: f64,
    /// Requests come for so long, in milliseconds.
    pub(crate) length: u64,
    pub(crate) network: Network,
    /// Of the instances' clocks, in milliseconds, either mode.
    pub(crate) clock_skew: u32,
    pub(crate) seed: u64,
    /// In milliseconds after the begin.
    pub(crate) events: Vec<(u64, Event)>,
}

/// What goes wrong, and for how many milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// An instance dies with all that it holds, and another takes its place at once.
    Crash(usize),
    Frozen(u64),
    Down(u64),
    Refusing(u64),
    /// An instance is cut off.
    Partition(usize, u64),
    /// A replica takes over that lacks so much.
    FailOver(u64),
}

/// What came of it.
pub(crate) struct Told {
    pub(crate) outcome: Outcome,
    /// Hits that failovers made the store forget.
    pub(crate) lost: u64,
    /// Hits of which no instance knows whether the store counted them, or that it was never told of.
    pub(crate) unknown: u64,
    /// Hits that the store counts at the end in the last window and the one before the first, all instances having said
    /// their last words.
    pub(crate) counted: u64,
    /// Which process decided each of the outcome's decisions.
    pub(crate) by: Vec<usize>,
    /// Processes that died, and when, in milliseconds after the begin.
    pub(crate) died: Vec<(usize, u64)>,
}

type Own = Coordinated<SimulatedRemote>;

/// The present instances, and what those that are gone left behind.
struct Fleet {
    store: SimulatedStore,
    clock: SimulatedClock,
    instances: Vec<(Arc<Own>, SimulatedRemote, SimulatedClock)>,
    gone: Vec<Arc<Own>>,
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
        1 => (1..300_u64).prop_map(Event::Refusing),
        2 => (0..8_usize, 1..600_u64).prop_map(|(i, millis)| Event::Partition(i, millis)),
        if failovers { 2 } else { 0 } => (1..500_u64).prop_map(Event::FailOver),
    ];
    vec((0..length, event), 0..6).prop_map(|mut events| {
        events.sort_by_key(|(at, _)| *at);
        events
    })
}

impl Story {
    /// For the figures, which are told by it.
    pub(crate) fn scenario(&self) -> Scenario {
        Scenario {
            instances: self.instances,
            tier: self.tier.clone(),
            load: 1.0,
            skew: Skew::Even,
            network: self.network,
            clock_skew: Period::default(),
            windows: u32::try_from(self.length * 1_000_000 / self.tier.period.as_nanos() + 2).expect("few"),
            seed: self.seed,
        }
    }

    /// When requests begin to come: the start of the first window that is judged.
    pub(crate) fn begin(&self) -> Timestamp {
        Timestamp::from_secs(1_700_000_000).window_end(self.tier.period)
    }

    pub(crate) fn run(&self) -> Told {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(self.tell())
    }

    async fn tell(&self) -> Told {
        let mut random = Random::new(self.seed);
        let warm_up = u64::try_from(WARM_UP.as_nanos()).expect("short");
        let clock = SimulatedClock::new(Timestamp::from_nanos(self.begin().as_nanos() - warm_up));
        let store = SimulatedStore::new(clock.clone(), random.draw());
        store.keep_writes(Period::from_secs(1));
        let mut fleet = Fleet { store, clock, instances: Vec::new(), gone: Vec::new(), random };
        for number in 0..self.instances {
            let instance = fleet.start(self, number);
            fleet.instances.push(instance);
        }
        sleep(WARM_UP).await;

        let begun = Instant::now();
        let rules =
            self.scenario().rules(RuleCoordination { mode: Some(self.mode), ..RuleCoordination::default() });
        let mut asked = JoinSet::new();
        let (mut lost, mut died) = (0, Vec::new());
        let (mut events, mut next) = (self.events.iter().peekable(), 0.0);
        for tick in 0..self.length {
            sleep_until(begun + Duration::from_millis(tick)).await;
            while let Some((_, event)) = events.next_if(|(at, _)| *at <= tick) {
                let gone = fleet.gone.len();
                lost += fleet.suffer(self, *event);
                died.extend(fleet.gone[gone..].iter().map(|own| (name(own), tick)));
            }
            while next <= tick as f64 {
                next += fleet.random.exponential(1.0 / self.rate);
                let (own, _, clock) = fleet.choose();
                let process = name(&own);
                let asking = ask(own, clock, fleet.clock.clone(), Arc::clone(&rules));
                asked.spawn(async move { (process, asking.await) });
            }
        }
        let (by, decisions) = asked.join_all().await.into_iter().unzip();
        // what is late arrives, and what is owed is told
        sleep(Duration::from_secs(2)).await;
        for (own, ..) in &fleet.instances {
            own.close().await;
        }
        let all = fleet.gone.iter().chain(fleet.instances.iter().map(|(own, ..)| own));
        let unknown = all
            .map(|own| {
                own.coordination_metrics().delivery_unknown.get()
                    + own.coordination_metrics().unreported.get()
            })
            .sum();
        let path = "simulated_key_value_".into();
        let target =
            Target { path, tiers: smallvec![self.tier.clone()], over_limit_policy: OverLimitPolicy::Ignore };
        // an instance that has not heard of the store yet goes by its own clock, which may be in the window before
        let before = Timestamp::from_nanos(self.begin().as_nanos() - 1);
        let counted = [before, fleet.clock.now()].map(|at| fleet.store.used(&target, at)).iter().sum();
        Told { outcome: Outcome { decisions, calls: 0, fallbacks: 0 }, lost, unknown, counted, by, died }
    }
}

impl Fleet {
    fn start(&mut self, story: &Story, number: usize) -> (Arc<Own>, SimulatedRemote, SimulatedClock) {
        let remote = self.store.connect(story.network);
        let skew = (self.random.unit() * 2.0 - 1.0) * f64::from(story.clock_skew) * 1e6;
        let clock = self.clock.skewed(skew as i64);
        let settings = CoordinationSettings {
            instance: format!("{number}-{}", self.gone.len()),
            on_store_failure: story.failure,
            max_counters: 64,
            ..CoordinationSettings::default()
        };
        let own = Coordinated::new(remote.clone(), Arc::new(clock.clone()), settings);
        (Arc::new(own), remote, clock)
    }

    /// The instance that the next request goes to: half of them to the first one.
    fn choose(&mut self) -> (Arc<Own>, SimulatedRemote, SimulatedClock) {
        let n = self.instances.len();
        let i = if self.random.chance(0.5) { 0 } else { (self.random.unit() * n as f64) as usize };
        self.instances[i.min(n - 1)].clone()
    }

    /// Lets something go wrong. How many hits the store then has forgotten.
    fn suffer(&mut self, story: &Story, event: Event) -> u64 {
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
                let fresh = self.start(story, i);
                let (own, remote, _) = std::mem::replace(&mut self.instances[i], fresh);
                // nothing that it says from now on is heard
                remote.partition(true);
                self.gone.push(own);
            }
            Event::Frozen(millis) => for_a_while(Condition::Frozen, millis),
            Event::Down(millis) => for_a_while(Condition::Down, millis),
            Event::Refusing(millis) => for_a_while(Condition::Rejecting, millis),
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

/// What tells a process from all others, living and dead.
fn name(own: &Arc<Own>) -> usize {
    Arc::as_ptr(own).addr()
}

async fn ask(
    own: Arc<Own>,
    clock: SimulatedClock,
    right: SimulatedClock,
    rules: Arc<RuleSet>,
) -> SimulatedDecision {
    let came = right.now();
    let entry = Entry { key: "key", value: "value" };
    let descriptor = Descriptor { entries: [entry].into_iter().collect(), ..Descriptor::default() };
    let request = Request { domain: "simulated", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    let matched = Matched::new(&rules, &request);
    let taken = own.take(&matched.checks, Scope::Descriptor, clock.now()).await;
    SimulatedDecision { came, decided: right.now(), passed: taken.ok().map(|taken| !taken[0].over) }
}
