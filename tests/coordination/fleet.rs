//! Some instances of weir in front of one simulated store.

use std::{sync::Arc, time::Duration};

use smallvec::smallvec;
use tokio::task::JoinSet;
use weir::{
    clock::Clock,
    limit::{
        Algorithm, Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OverLimitPolicy,
        Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
    },
    store::{
        Store,
        coordinated::{Coordinated, CoordinationSettings},
        remote::Target,
        simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
    },
};

/// Long ago, at the beginning of a window of any length that is used here.
const EPOCH: Timestamp = Timestamp::from_secs(1_699_999_200);

/// A fixed window of a day.
pub(crate) fn daily(requests: u32) -> Tier {
    Tier { requests, period: Period::from_secs(86_400), algorithm: Algorithm::FixedWindow }
}

pub(crate) struct Fleet {
    pub(crate) clock: SimulatedClock,
    pub(crate) shared: SimulatedStore,
    pub(crate) instances: Vec<Arc<Instance>>,
}

pub(crate) struct Instance {
    pub(crate) store: Coordinated<SimulatedRemote>,
    pub(crate) clock: SimulatedClock,
    rules: RuleSet,
}

/// What became of a request: when it was decided, on the right clock, and how long it waited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) at: Timestamp,
    pub(crate) waited: Duration,
    pub(crate) admitted: bool,
}

impl Fleet {
    /// `instances` of them, which know of each other, under a rule of these tiers.
    pub(crate) async fn new(instances: usize, way: Coordination, tiers: &[Tier], network: Network) -> Self {
        let clock = SimulatedClock::new(EPOCH);
        let store = SimulatedStore::new(clock.clone(), 7);
        let instances = (0..instances).map(|i| {
            let coordination = RuleCoordination { mode: Some(way), ..RuleCoordination::default() };
            let limit = Limit::Tiers { tiers: tiers.into(), over_limit_policy: OverLimitPolicy::Ignore };
            let rule = Rule { coordination, ..Rule::new(limit) };
            let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
            let rules = RuleSet::new(&[Domain { name: "d".into(), nodes: vec![node] }], KeyHasher::random());
            let settings =
                CoordinationSettings { instance: format!("i{i}"), ..CoordinationSettings::default() };
            let clock = clock.clone();
            let own = Coordinated::new(store.connect(network), Arc::new(clock.clone()), settings);
            Arc::new(Instance { store: own, clock, rules })
        });
        let instances = instances.collect();
        let fleet = Self { clock, shared: store, instances };
        // two heartbeats, and all know of all
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        for instance in &fleet.instances {
            assert_eq!(instance.store.instances(), fleet.instances.len());
        }
        fleet
    }

    /// Hits that the store counts under `tier`, which is the only one.
    pub(crate) fn counted(&self, tier: Tier) -> u64 {
        let target = Target {
            path: "d_k_v_".into(),
            tiers: smallvec![tier],
            over_limit_policy: OverLimitPolicy::Ignore,
        };
        self.shared.used(&target, self.clock.right())
    }

    /// Offers `rate` hits a second for `time`, spread over the instances by `weights`.
    pub(crate) async fn offer(&self, rate: u64, time: Duration, weights: &[u32]) -> Vec<Outcome> {
        let total: u32 = weights.iter().sum();
        let mut asked = JoinSet::new();
        let begun = tokio::time::Instant::now();
        let mut sent = 0;
        let mut turn = 0_u32;
        while begun.elapsed() < time {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let due = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX) * rate / 1_000_000;
            while sent < due {
                sent += 1;
                // a low-discrepancy walk over the weights
                turn = (turn + 0x9e37) % (total * 1_000);
                let mut point = turn / 1_000;
                let chosen = weights.iter().position(|weight| {
                    let here = point < *weight;
                    point = point.saturating_sub(*weight);
                    here
                });
                let instance = Arc::clone(&self.instances[chosen.unwrap_or(0)]);
                let right = self.clock.clone();
                asked.spawn(async move {
                    let (asked_at, asked) = (right.right(), tokio::time::Instant::now());
                    let admitted = instance.ask().await;
                    let waited = asked.elapsed();
                    // what the store decides it decides half-way through the round trip
                    let half = Period::from_nanos(u64::try_from(waited.as_nanos() / 2).unwrap_or_default());
                    Outcome { at: asked_at.after(half), waited, admitted }
                });
            }
        }
        asked.join_all().await
    }
}

impl Instance {
    pub(crate) async fn ask(&self) -> bool {
        let entries = [Entry { key: "k", value: "v" }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let taken = self.store.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        !taken.expect("a coordinated store always decides")[0].over
    }
}

/// The most that were admitted in any interval of `period`, wherever it begins.
pub(crate) fn most_in_any(outcomes: &[Outcome], period: Period) -> u64 {
    let mut times: Vec<Timestamp> = outcomes.iter().filter(|o| o.admitted).map(|o| o.at).collect();
    times.sort_unstable();
    let mut first = 0;
    let in_period = times.iter().enumerate().map(|(last, at)| {
        while at.since(times[first]) >= period {
            first += 1;
        }
        (last - first + 1) as u64
    });
    in_period.max().unwrap_or_default()
}

/// How many were admitted in each whole window of `period`.
pub(crate) fn by_window(outcomes: &[Outcome], period: Period) -> Vec<u64> {
    let counts = every_window(outcomes, period);
    counts[1..counts.len() - 1].to_vec()
}

/// How many were admitted in each window of `period`, the first and the last of which may not have been there from begin to
/// end.
pub(crate) fn every_window(outcomes: &[Outcome], period: Period) -> Vec<u64> {
    let mut windows = std::collections::BTreeMap::<Timestamp, u64>::new();
    for outcome in outcomes {
        *windows.entry(outcome.at.window_end(period)).or_default() += u64::from(outcome.admitted);
    }
    windows.into_values().collect()
}
