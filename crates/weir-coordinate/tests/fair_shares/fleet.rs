//! Instances that share a pool through a simulated store: many cycles of demand, and what is admitted.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Condition, Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OnStoreFailure, OverLimitPolicy,
    Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
    share::Sharing,
};
use weir_store::{Store as _, clock::Clock as _};

use crate::arrivals::{Arrivals, CYCLE, MILLIS, Random};

/// The time that the instances run before the first request, so that they know each other.
const WARM_UP: Duration = Duration::from_secs(5);

type Instance = Coordinated<SimulatedRemote>;

/// How early an instance may begin a cycle, since it does not know the store's clock exactly.
const CLOCK_ERROR: Period = Period::from_millis(4);

/// Which instance receives a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    /// Any.
    Even,
    /// The n-th with a weight of 1/n, beginning with another one for each member.
    Uneven,
    /// For each member always the same.
    Pinned,
}

/// Something that happens at a millisecond.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Kill(usize),
    Join,
    Store(Condition),
    /// The instance is cut off, or connected again.
    Partition(usize, bool),
    /// The store's clock is off by this many nanoseconds from now on.
    Clock(i64),
}

/// A fleet, and its demand.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) capacity: u32,
    pub(crate) instances: usize,
    pub(crate) members: Vec<(String, Arrivals)>,
    pub(crate) placement: Placement,
    pub(crate) sharing: Sharing,
    pub(crate) mode: Coordination,
    pub(crate) cycles: u64,
    pub(crate) seed: u64,
    pub(crate) network: Network,
    pub(crate) events: Vec<(u64, Event)>,
    pub(crate) tiers_beside: Vec<Tier>,
    /// The hits of each request.
    pub(crate) hits: u32,
    pub(crate) on_store_failure: OnStoreFailure,
}

/// A decided request.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    member: usize,
    arrived: Timestamp,
    answered: Timestamp,
    is_admitted: bool,
}

/// What a fleet did in each cycle.
#[derive(Debug)]
pub(crate) struct FleetResult {
    /// For each cycle and member the hits that it asked for, and those that were admitted.
    pub(crate) cycles: Vec<Vec<(u32, u32)>>,
    /// For each cycle the hits that were certainly admitted in it.
    pub(crate) certain: Vec<u32>,
    pub(crate) decisions: u64,
    pub(crate) calls: u64,
    pub(crate) waited: u64,
    pub(crate) stranded: u64,
}

impl Fleet {
    /// Four members that ask for about twice the capacity of 4000, as in the model.
    pub(crate) fn of(instances: usize, placement: Placement) -> Self {
        let member = |name: &str, rate| (name.to_owned(), Arrivals::Steady(rate));
        Self {
            capacity: 4_000,
            instances,
            members: vec![member("A", 200.0), member("B", 900.0), member("C", 4_000.0), member("D", 2_500.0)],
            placement,
            sharing: Sharing { borrow: weir_limit::share::Borrow::MaxMin, ..Sharing::default() },
            mode: Coordination::Lease,
            cycles: 6,
            seed: 0,
            network: Network::default(),
            events: Vec::new(),
            tiers_beside: Vec::new(),
            hits: 1,
            on_store_failure: OnStoreFailure::Local,
        }
    }

    fn rules(&self) -> RuleSet {
        let tier = Tier::fixed_window(self.capacity, CYCLE);
        let tiers = std::iter::once(tier).chain(self.tiers_beside.clone()).collect();
        let limit = Limit::Tiers { tiers, over_limit_policy: OverLimitPolicy::Ignore };
        let rule = Rule {
            sharing: Some(Arc::new(self.sharing.clone())),
            coordination: RuleCoordination { mode: Some(self.mode), ..RuleCoordination::default() },
            ..Rule::new(limit)
        };
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("client", Values::Any) };
        RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random())
    }

    pub(crate) fn run(&self) -> FleetResult {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(self.run_async())
    }

    async fn run_async(&self) -> FleetResult {
        let start = Timestamp::from_secs(1_700_000_000).window_end(CYCLE);
        let warm_up = u64::try_from(WARM_UP.as_nanos()).expect("short");
        let clock = SimulatedClock::new(Timestamp::from_nanos(start.as_nanos() - warm_up));
        let store = SimulatedStore::new(clock.skewed(0), self.seed);
        let rules = Arc::new(self.rules());
        let new = |number: usize| {
            let settings = CoordinationSettings {
                instance: format!("i{number}"),
                on_store_failure: self.on_store_failure,
                max_counters: 64,
                ..CoordinationSettings::default()
            };
            Arc::new(Coordinated::new(store.connect(self.network), Arc::new(clock.clone()), settings))
        };
        let mut live: Vec<(usize, Arc<Instance>)> = (0..self.instances).map(|i| (i, new(i))).collect();
        let mut calls = 0;
        sleep(WARM_UP).await;
        let begun = Instant::now();
        let mut random = Random(self.seed + 1);
        let mut events: Vec<(u64, u64, usize)> = Vec::new();
        for cycle in 0..self.cycles {
            for (i, (_, arrivals)) in self.members.iter().enumerate() {
                let instants = arrivals.of(&mut random, cycle).into_iter();
                let start = cycle * u64::from(MILLIS);
                events.extend(instants.map(|at| (start + u64::from(at.min(MILLIS - 1)), random.next(), i)));
            }
        }
        events.sort_unstable();
        let mut faults = self.events.iter().peekable();
        let mut requests = JoinSet::new();
        let mut joined = self.instances;
        for (at, _, member) in events {
            while let Some((when, event)) = faults.next_if(|(when, _)| *when <= at) {
                sleep_until(begun + Duration::from_millis(*when)).await;
                match event {
                    Event::Kill(i) => {
                        let position = live.iter().position(|(number, _)| number == i).expect("it lives");
                        let (_, dead) = live.remove(position);
                        calls += dead.remote().calls();
                        dead.remote().partition(true);
                    }
                    Event::Join => {
                        live.push((joined, new(joined)));
                        joined += 1;
                    }
                    Event::Store(condition) => store.set(*condition),
                    Event::Clock(nanos) => store.clock().set_offset(*nanos),
                    Event::Partition(i, is_cut) => {
                        let found = live.iter().find(|(number, _)| number == i);
                        found.expect("it lives").1.remote().partition(*is_cut);
                    }
                }
            }
            sleep_until(begun + Duration::from_millis(at)).await;
            let instance = Arc::clone(&live[self.placement.choose(member, live.len(), &mut random)].1);
            let (rules, clock) = (Arc::clone(&rules), clock.clone());
            let (name, hits) = (self.members[member].0.clone(), self.hits);
            requests.spawn(async move {
                let arrived = clock.now();
                let entries = [Entry { key: "client", value: &name }];
                let descriptor =
                    Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
                let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits };
                let matched = Matched::new(&rules, &request);
                let decisions = instance.take(&matched.checks, Scope::Descriptor, arrived).await;
                let is_admitted = !decisions.expect("it decides")[0].over;
                Outcome { member, arrived, answered: clock.now(), is_admitted }
            });
        }
        let all = requests.join_all().await;
        let (mut waited, mut stranded) = (0, 0);
        for (_, instance) in &live {
            calls += instance.remote().calls();
            waited += instance.coordination_metrics().decisions.waited.get();
            stranded += instance.coordination_metrics().hits.stranded.get();
        }
        let mut result = FleetResult {
            cycles: vec![vec![(0, 0); self.members.len()]; self.cycles as usize],
            certain: vec![0; self.cycles as usize],
            decisions: all.len() as u64,
            calls,
            waited,
            stranded,
        };
        let hits = self.hits;
        for Outcome { member, arrived, answered, is_admitted } in all {
            let cycle = |at: Timestamp| (at.since(start).as_nanos() / CYCLE.as_nanos()) as usize;
            let counts = &mut result.cycles[cycle(arrived)][member];
            counts.0 += hits;
            counts.1 += hits * u32::from(is_admitted);
            let is_certain = cycle(arrived) == cycle(answered.after(CLOCK_ERROR));
            if is_admitted && is_certain {
                result.certain[cycle(arrived)] += hits;
            }
        }
        result
    }
}

impl Placement {
    fn choose(self, member: usize, instances: usize, random: &mut Random) -> usize {
        match self {
            Self::Even => random.next() as usize % instances,
            Self::Pinned => member % instances,
            Self::Uneven => {
                let all: f64 = (1..=instances).map(|n| 1.0 / n as f64).sum();
                let mut left = random.fraction() * all;
                let found = (0..instances).find(|n| {
                    left -= 1.0 / (n + 1) as f64;
                    left <= 0.0
                });
                (found.unwrap_or(instances - 1) + member) % instances
            }
        }
    }
}

impl FleetResult {
    /// Returns what was admitted in each cycle.
    pub(crate) fn admitted(&self) -> Vec<u32> {
        self.cycles.iter().map(|cycle| cycle.iter().map(|(_, admitted)| admitted).sum()).collect()
    }

    /// Returns the least part that was used in a cycle whose demand exceeds the capacity, after the first two, in
    /// hundredths of a percent.
    pub(crate) fn least_used(&self, capacity: u32) -> u32 {
        let cycles = self.cycles.iter().zip(self.admitted()).skip(2);
        let used = cycles
            .filter(|(cycle, _)| cycle.iter().map(|(asked, _)| asked).sum::<u32>() >= capacity)
            .map(|(_, admitted)| admitted * 10_000 / capacity);
        used.min().unwrap_or(10_000)
    }
}
