//! A fleet of instances that share one simulated store.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Algorithm, Coordination, Decision, Descriptor, Domain, Entry, KeyHasher, Limit, LimitCheck, Matched,
    OverLimitPolicy, Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier, Timestamp,
    Values,
};
use weir_store::{Decisions, Store, clock::Clock, remote::Target};

/// The time at which the tests begin: the start of a window of every length that they use.
pub(crate) const EPOCH: Timestamp = Timestamp::from_secs(1_699_999_200);

/// A fixed window of a day.
pub(crate) fn daily(requests: u32) -> Tier {
    Tier::fixed_window(requests, Period::from_secs(86_400))
}

/// A sliding window of a day.
pub(crate) fn sliding(requests: u32) -> Tier {
    Tier { algorithm: Algorithm::SlidingWindow, ..daily(requests) }
}

/// A rule in coordination mode `mode`.
pub(crate) fn rule(mode: Coordination, tiers: &[Tier], over_limit_policy: OverLimitPolicy) -> Rule {
    let coordination = RuleCoordination { mode: Some(mode), ..RuleCoordination::default() };
    let limit = Limit::Tiers { tiers: tiers.into(), over_limit_policy };
    Rule { coordination, ..Rule::new(limit) }
}

fn rule_set(rule: Rule, hasher: KeyHasher) -> RuleSet {
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
    RuleSet::new(&[Domain::new("d", vec![node])], hasher)
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
    hasher: KeyHasher,
}

/// The outcome of a request: when it was decided, on an accurate clock, and how long it waited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) at: Timestamp,
    pub(crate) waited: Duration,
    pub(crate) admitted: bool,
}

impl Fleet {
    /// Starts `instances` that know each other, with one rule of `tiers`.
    pub(crate) async fn new(instances: usize, mode: Coordination, tiers: &[Tier], network: Network) -> Self {
        let clock = SimulatedClock::new(EPOCH);
        let store = SimulatedStore::new(clock.clone(), 7);
        let rule = rule(mode, tiers, OverLimitPolicy::Ignore);
        Self::start(instances, rule, network, clock, store).await
    }

    /// Starts `instances` that know each other, with `rule`, in front of `store`.
    pub(crate) async fn start(
        instances: usize,
        rule: Rule,
        network: Network,
        clock: SimulatedClock,
        store: SimulatedStore,
    ) -> Self {
        let mut fleet = Self { clock, shared: store, instances: Vec::new() };
        fleet.add(instances, &rule, network);
        fleet.wait_until_known().await;
        fleet
    }

    /// Starts `count` more instances, and waits until all know each other.
    pub(crate) async fn join(&mut self, count: usize, rule: Rule) {
        self.add(count, &rule, Network::default());
        self.wait_until_known().await;
    }

    /// Starts `count` more instances.
    pub(crate) fn add(&mut self, count: usize, rule: &Rule, network: Network) {
        let hasher = self.instances.first().map_or_else(KeyHasher::random, |instance| instance.hasher);
        for i in self.instances.len()..self.instances.len() + count {
            let settings =
                CoordinationSettings { instance: format!("i{i}"), ..CoordinationSettings::default() };
            let clock = self.clock.clone();
            let store = Coordinated::new(self.shared.connect(network), Arc::new(clock.clone()), settings);
            let rules = rule_set(rule.clone(), hasher);
            self.instances.push(Arc::new(Instance { store, clock, rules, hasher }));
        }
    }

    async fn wait_until_known(&self) {
        // after two heartbeats all instances know each other
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        for instance in &self.instances {
            assert_eq!(instance.store.instances(), self.instances.len());
        }
    }

    /// Returns the hits that the store counts for `tier`, the only one.
    pub(crate) fn counted(&self, tier: Tier) -> u64 {
        self.counted_under(tier, OverLimitPolicy::Ignore)
    }

    pub(crate) fn counted_under(&self, tier: Tier, over_limit_policy: OverLimitPolicy) -> u64 {
        let target = Target { path: "d|k=v".into(), tiers: [tier].into(), over_limit_policy };
        self.shared.used(&target, self.clock.right())
    }

    /// Sends `rate` hits a second for `time`, spread over the instances by `weights`.
    pub(crate) async fn offer(&self, rate: u64, time: Duration, weights: &[u32]) -> Vec<Outcome> {
        let total: u32 = weights.iter().sum();
        let mut requests = JoinSet::new();
        let begun = tokio::time::Instant::now();
        let mut sent = 0;
        let mut turn = 0_u32;
        while begun.elapsed() < time {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let due = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX) * rate / 1_000_000;
            while sent < due {
                sent += 1;
                // a low-discrepancy sequence over the weights
                turn = (turn + 0x9e37) % (total * 1_000);
                let mut point = turn / 1_000;
                let chosen = weights.iter().position(|weight| {
                    let here = point < *weight;
                    point = point.saturating_sub(*weight);
                    here
                });
                let instance = Arc::clone(&self.instances[chosen.unwrap_or(0)]);
                let right = self.clock.clone();
                requests.spawn(async move {
                    let (sent_at, sent) = (right.right(), tokio::time::Instant::now());
                    let admitted = instance.hit().await;
                    let waited = sent.elapsed();
                    // the store decides half-way through the round trip
                    let half = Period::from_nanos(u64::try_from(waited.as_nanos() / 2).unwrap_or_default());
                    Outcome { at: sent_at.after(half), waited, admitted }
                });
            }
        }
        requests.join_all().await
    }
}

impl Instance {
    /// Compiles `rule` for the key that [`Instance::hit`] uses, with the same counter.
    pub(crate) fn rules_with(&self, rule: Rule) -> RuleSet {
        rule_set(rule, self.hasher)
    }

    /// Sends one hit. Returns whether it was admitted.
    pub(crate) async fn hit(&self) -> bool {
        self.hit_under(&self.rules, Scope::Descriptor).await
    }

    /// Sends one hit under `rules` instead of its own. Returns whether it was admitted.
    pub(crate) async fn hit_under(&self, rules: &RuleSet, scope: Scope) -> bool {
        !self.decide(rules, scope, false).await.over
    }

    /// Gives one hit back.
    pub(crate) async fn give_back(&self) {
        self.decide(&self.rules, Scope::Descriptor, true).await;
    }

    /// Decides about one hit under `rules`.
    pub(crate) async fn decide(&self, rules: &RuleSet, scope: Scope, gives_back: bool) -> Decision {
        let now = self.now();
        with_check(rules, gives_back, async |checks| {
            let decisions = self.store.take(checks, scope, now).await;
            decisions.expect("a coordinated store always decides")[0]
        })
        .await
    }

    /// Sends `hits` in one request. Returns whether it was admitted.
    pub(crate) async fn hits(&self, hits: u32) -> bool {
        let (descriptor, now) = (descriptor(false), self.now());
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, Scope::Descriptor, now).await;
        !decisions.expect("a coordinated store always decides")[0].over
    }

    /// Sends a request with a descriptor for each of `asks`, all of one counter: the hits, and whether they are given
    /// back.
    pub(crate) async fn ask(&self, scope: Scope, asks: &[(u64, bool)]) -> Decisions {
        let of = |(hits, gives_back)| Descriptor { hits: Some(hits), ..descriptor(gives_back) };
        let descriptors = asks.iter().copied().map(of).collect();
        let request = Request { domain: "d", descriptors, hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, scope, self.now()).await;
        decisions.expect("a coordinated store always decides")
    }

    /// Runs `act` on the check of a hit.
    pub(crate) async fn with_check<T>(&self, act: impl AsyncFnOnce(&LimitCheck<'_>) -> T) -> T {
        with_check(&self.rules, false, async |checks| act(&checks[0]).await).await
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the decisions that were not made by the store, and the hits whose fate is unknown.
    pub(crate) fn failures(&self) -> (u64, u64) {
        let metrics = self.store.coordination_metrics();
        (metrics.decisions.fallback.get(), metrics.hits.delivery_unknown.get())
    }
}

fn descriptor(gives_back: bool) -> Descriptor<'static> {
    let entries = [Entry { key: "k", value: "v" }];
    Descriptor { entries: entries.into_iter().collect(), refund: gives_back, ..Descriptor::default() }
}

async fn with_check<T>(
    rules: &RuleSet,
    gives_back: bool,
    act: impl AsyncFnOnce(&[LimitCheck<'_>]) -> T,
) -> T {
    let descriptor = descriptor(gives_back);
    let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    act(&Matched::new(rules, &request).checks).await
}

/// Returns the most hits that were admitted in any interval of `period`.
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

/// Returns the hits that were admitted in each whole window of `period`.
pub(crate) fn by_window(outcomes: &[Outcome], period: Period) -> Vec<u64> {
    let counts = every_window(outcomes, period);
    counts[1..counts.len() - 1].to_vec()
}

/// Returns the hits that were admitted in each window of `period`. The first and the last window may be incomplete.
pub(crate) fn every_window(outcomes: &[Outcome], period: Period) -> Vec<u64> {
    let mut windows = std::collections::BTreeMap::<Timestamp, u64>::new();
    for outcome in outcomes {
        *windows.entry(outcome.at.window_end(period)).or_default() += u64::from(outcome.admitted);
    }
    windows.into_values().collect()
}
