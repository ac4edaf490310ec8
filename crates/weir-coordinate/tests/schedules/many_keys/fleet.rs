//! Instances in front of several nodes, and requests for hundreds of keys.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Builder, time::sleep};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Condition, Network, Random, SimulatedClock, SimulatedStore},
};
use weir_limit::{
    Algorithm, Bucket, Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OnStoreFailure,
    OverLimitPolicy, Period, Refill, Request, Rule, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
};
use weir_store::{Store as _, clock::Clock as _, remote::Target};

use super::nodes::{Nodes, node_of};

/// The keys of each rule.
const VALUES: usize = 60;

/// The rules of a day, with their limits and algorithms. Their hits are accounted for.
const RULES: [(&str, u32, u8); 5] =
    [("fixed", 40, 0), ("large", 4_000, 0), ("reference", 15, 1), ("sliding", 25, 2), ("bucket", 30, 3)];

const DAY: Period = Period::from_secs(86_400);

/// How long requests arrive at full rate.
const LOAD: u64 = 4_000;

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) mode: Coordination,
    pub(super) failure: OnStoreFailure,
    pub(super) instances: usize,
    pub(super) nodes: usize,
    pub(super) max_counters: usize,
    pub(super) round_trip: Duration,
    /// All limits are raised in the middle.
    pub(super) reload: bool,
    /// The last node is down for a second.
    pub(super) node_fails: bool,
    /// All nodes hang for two minutes.
    pub(super) outage: bool,
    pub(super) seed: u64,
}

/// What happened to one key.
#[derive(Clone, Debug, Default)]
struct Account {
    /// Admitted hits, without those that were given back, of each instance.
    admitted: Vec<u64>,
    /// All hits, rejected ones included.
    tried: u64,
}

/// What was found, summed over all keys.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Admitted hits that the store does not count at the end, and hits that it counts and nobody admitted.
    pub(super) missing: u64,
    pub(super) excess: u64,
    /// The same in sliding windows and buckets.
    pub(super) excess_flowing: u64,
    /// The same while one client keeps trying, before the instances stop.
    pub(super) unsettled: u64,
    pub(super) unknown: u64,
    pub(super) unreported: u64,
    pub(super) stranded: u64,
    pub(super) evicted: u64,
    /// Hits above the limit of their key.
    pub(super) above: u64,
    /// Rejected requests that would have fitted.
    pub(super) wrong_rejections: u64,
    pub(super) most_counters: usize,
    /// Counters that are left of windows that ended long ago.
    pub(super) short_lived: usize,
    pub(super) requests: u64,
}

type SimulatedInstance = Coordinated<Nodes>;

struct Run<'a> {
    case: &'a Case,
    clock: SimulatedClock,
    stores: Vec<SimulatedStore>,
    instances: Vec<Arc<SimulatedInstance>>,
    hasher: KeyHasher,
    rules: RuleSet,
    raised: u32,
    random: Random,
    accounts: Vec<Account>,
    report: Report,
}

impl Case {
    pub(super) fn has_faults(&self) -> bool {
        self.node_fails || self.outage || self.max_counters < 1_000
    }

    pub(super) fn run(&self) -> Report {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let mut run = Run::new(self);
            // after two heartbeats all instances know each other
            sleep(Duration::from_millis(2_500)).await;
            run.all().await;
            run.report
        })
    }
}

fn tier((_, requests, algorithm): (&str, u32, u8), raised: u32) -> Tier {
    let algorithm = match algorithm {
        2 => Algorithm::SlidingWindow,
        3 => Algorithm::TokenBucket(Bucket {
            burst: requests * raised,
            refill: Refill::Continuous,
            strict: false,
        }),
        _ => Algorithm::FixedWindow,
    };
    // a bucket gets one token a day
    let requests = if matches!(algorithm, Algorithm::TokenBucket(_)) { 1 } else { requests * raised };
    Tier::new(requests, DAY, algorithm)
}

fn policy((_, _, algorithm): (&str, u32, u8)) -> OverLimitPolicy {
    if algorithm == 1 { OverLimitPolicy::Count } else { OverLimitPolicy::Ignore }
}

fn rules(raised: u32, hasher: KeyHasher) -> RuleSet {
    let node = |key: &str, tier: Tier, over_limit_policy| {
        let limit = Limit::Tiers { tiers: [tier].into_iter().collect(), over_limit_policy };
        RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new(key, Values::Any) }
    };
    let mut nodes: Vec<RuleNode> =
        RULES.iter().map(|rule| node(rule.0, tier(*rule, raised), policy(*rule))).collect();
    // keys that are never asked twice, and a client that keeps trying
    let second = Tier::fixed_window(5, Period::from_secs(1));
    nodes.push(node("short", second, OverLimitPolicy::Ignore));
    let over = Tier::fixed_window(5, DAY);
    nodes.push(node("over", over, OverLimitPolicy::Count));
    RuleSet::new(&[Domain::new("d", nodes)], hasher)
}

impl<'a> Run<'a> {
    fn new(case: &'a Case) -> Self {
        let mut random = Random::new(case.seed);
        let clock = SimulatedClock::new(Timestamp::from_secs(1_699_999_200));
        let stores: Vec<SimulatedStore> =
            (0..case.nodes).map(|_| SimulatedStore::new(clock.clone(), random.next())).collect();
        let network =
            Network { round_trip: case.round_trip, timeout: Duration::from_secs(10), ..Network::default() };
        let instances = (0..case.instances).map(|i| {
            let settings = CoordinationSettings {
                coordination: case.mode,
                on_store_failure: case.failure,
                max_counters: case.max_counters,
                instance: format!("i{i}"),
                ..CoordinationSettings::default()
            };
            let remote = Nodes(stores.iter().map(|store| store.connect(network)).collect());
            Arc::new(Coordinated::new(remote, Arc::new(clock.clone()), settings))
        });
        let instances = instances.collect();
        let hasher = KeyHasher::random();
        let account = Account { admitted: vec![0; case.instances], tried: 0 };
        Self {
            case,
            clock,
            instances,
            stores,
            hasher,
            rules: rules(1, hasher),
            raised: 1,
            random,
            accounts: vec![account; RULES.len() * VALUES],
            report: Report::default(),
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn below(&mut self, n: usize) -> usize {
        ((self.random.unit() * n as f64) as usize).min(n - 1)
    }

    async fn all(&mut self) {
        for millis in 0..LOAD {
            if millis == LOAD / 2 && self.case.reload {
                self.raised = 2;
                self.rules = rules(2, self.hasher);
            }
            let failing = self.stores.last().expect("there is a node");
            if self.case.node_fails && millis == LOAD / 4 {
                failing.set(Condition::Down);
            }
            if self.case.node_fails && millis == LOAD / 2 {
                failing.set(Condition::Up);
            }
            self.random_request().await;
            if millis % 8 == 0 {
                self.ask("short", &millis.to_string(), 1, false, 0).await;
            }
            sleep(Duration::from_millis(1)).await;
        }
        if self.case.outage {
            self.stores.iter().for_each(|store| store.set(Condition::Frozen));
            for _ in 0..600 {
                self.random_request().await;
                sleep(Duration::from_millis(200)).await;
            }
            self.stores.iter().for_each(|store| store.set(Condition::Up));
        }
        // all others are quiet, while one client keeps trying
        for _ in 0..900 {
            self.ask("over", "x", 1, false, 0).await;
            sleep(Duration::from_millis(20)).await;
        }
        // what instances may keep ahead: an eighth if there is one, a hundredth all together if there are several
        let (missing, excess, _) = self.differences(if self.case.instances == 1 { 8 } else { 100 });
        self.report.unsettled = missing + excess;
        let days = RULES.len() * VALUES + 1;
        let counters = self.instances.iter().map(|instance| instance.counters());
        self.report.short_lived = counters.map(|counters| counters.saturating_sub(days)).sum();
        for instance in &self.instances {
            instance.close().await;
        }
        (self.report.missing, self.report.excess, self.report.excess_flowing) = self.differences(0);
        for instance in &self.instances {
            let metrics = instance.coordination_metrics();
            self.report.unknown += metrics.hits.delivery_unknown.get();
            self.report.unreported += metrics.hits.unreported.get();
            self.report.stranded += metrics.hits.stranded.get();
            self.report.evicted += metrics.evictions.evicted.get();
        }
        for (i, account) in self.accounts.iter().enumerate() {
            let (_, requests, algorithm) = RULES[i / VALUES];
            // a raised burst may admit the difference once more, while an instance does not know of it
            let once_more = if algorithm == 3 { self.raised - 1 } else { 0 };
            let limit = u64::from(requests * (self.raised + once_more));
            self.report.above += account.admitted.iter().sum::<u64>().saturating_sub(limit);
        }
    }

    /// Sends a request for a random key, most often one of the first of its rule.
    async fn random_request(&mut self) {
        let rule = self.below(RULES.len());
        let value = self.below(VALUES).min(self.below(VALUES)).min(self.below(VALUES));
        let instance = self.below(self.instances.len());
        let of = rule * VALUES + value;
        let hits = [1, 1, 1, 1, 1, 2, 3, 5, 0, 1][self.below(10)];
        let own = self.accounts[of].admitted[instance];
        // an instance gives back what it has admitted itself; what `deny` does with hits that are given back is not
        // defined
        let gives_back =
            self.below(20) == 0 && own >= hits && hits > 0 && self.case.failure == OnStoreFailure::Local;
        let all: u64 = self.accounts[of].admitted.iter().sum();
        let over = self.ask(RULES[rule].0, &value.to_string(), hits, gives_back, instance).await;
        let account = &mut self.accounts[of];
        match (over, gives_back) {
            (_, true) => account.admitted[instance] -= hits,
            (false, false) => account.admitted[instance] += hits,
            (true, false) => {}
        }
        if !gives_back {
            account.tried += hits;
        }
        let limit = u64::from(RULES[rule].1 * self.raised);
        // rejected hits of the reference's spelling count
        if over && RULES[rule].2 != 1 && all + hits <= limit {
            self.report.wrong_rejections += 1;
        }
    }

    /// Sends one request. Returns whether it was rejected.
    async fn ask(&mut self, key: &str, value: &str, hits: u64, gives_back: bool, instance: usize) -> bool {
        let descriptor = Descriptor {
            entries: [Entry { key, value }].into_iter().collect(),
            hits: Some(hits),
            refund: gives_back,
            ..Descriptor::default()
        };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let instance = &self.instances[instance];
        let decisions = instance.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        self.report.requests += 1;
        self.report.most_counters = self.report.most_counters.max(instance.counters());
        decisions.expect("a coordinated store always decides")[0].over
    }

    /// Returns how many admitted hits the store does not count, and how many it counts that nobody admitted, in fixed
    /// windows and in others, apart from a `share`-th part of each limit that an instance may keep; 0 for none.
    fn differences(&self, share: u32) -> (u64, u64, u64) {
        let (mut missing, mut excess, mut excess_flowing) = (0, 0, 0);
        for (i, account) in self.accounts.iter().enumerate() {
            let rule = RULES[i / VALUES];
            let target = Target {
                path: format!("d|{}={}", rule.0, i % VALUES).into(),
                tiers: [tier(rule, self.raised)].into_iter().collect(),
                over_limit_policy: policy(rule),
            };
            let counted =
                self.stores[node_of(&target.path, self.stores.len())].used(&target, self.clock.now());
            let admitted: u64 = account.admitted.iter().sum();
            let kept = (rule.1 * self.raised).checked_div(share).map_or(0, u64::from);
            // rejected hits count in the reference's spelling; a part of a token returns to a bucket
            let most = if rule.2 == 1 { account.tried } else { admitted };
            let least = match rule.2 {
                // while an instance does not know of a larger burst yet, its commands cut what is taken, leased hits
                // included, to the smaller one
                3 if self.raised > 1 => 0,
                // what is more than a burst of debt is forgotten
                3 => admitted.saturating_sub(1).min(2 * u64::from(rule.1)),
                _ => admitted,
            };
            missing += least.saturating_sub(counted);
            *if rule.2 >= 2 { &mut excess_flowing } else { &mut excess } +=
                counted.saturating_sub(most + kept);
        }
        (missing, excess, excess_flowing)
    }
}
