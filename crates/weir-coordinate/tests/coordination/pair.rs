//! Two instances with two rules, and requests of several descriptors.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Coordination, Decision, Descriptor, Domain, Entry, KeyHasher, Matched, OverLimitPolicy, Request, Rule,
    RuleNode, RuleSet, RuntimeLimit, Scope, Values,
};
use weir_store::{Decisions, Store as _, clock::Clock as _, remote::Target};

use crate::fleet::{EPOCH, daily, rule};

/// Within this time the store knows what is given back.
pub(crate) const REPORTED: Duration = Duration::from_millis(20);

/// A descriptor of a request.
pub(crate) struct Ask<'a> {
    pub(crate) key: &'a str,
    pub(crate) hits: u64,
    pub(crate) gives_back: bool,
    /// The limit that it brings.
    pub(crate) own: Option<RuntimeLimit>,
}

impl<'a> Ask<'a> {
    /// One hit for `key`.
    pub(crate) const fn hit(key: &'a str) -> Self {
        Self { key, hits: 1, gives_back: false, own: None }
    }
}

/// Two instances with a rule for each of two keys: `large` admits 100 hits, `small` one.
pub(crate) struct Pair {
    pub(crate) clock: SimulatedClock,
    pub(crate) shared: SimulatedStore,
    pub(crate) stores: [Coordinated<SimulatedRemote>; 2],
    rules: RuleSet,
}

impl Pair {
    pub(crate) async fn new(large: Coordination, small: Coordination) -> Self {
        let of = |mode, requests| rule(mode, &[daily(requests)], OverLimitPolicy::Ignore);
        Self::with(of(large, 100), of(small, 1)).await
    }

    pub(crate) async fn with(large: Rule, small: Rule) -> Self {
        Self::start(large, small, CoordinationSettings::default()).await
    }

    pub(crate) async fn start(large: Rule, small: Rule, settings: CoordinationSettings) -> Self {
        let clock = SimulatedClock::new(EPOCH);
        let shared = SimulatedStore::new(clock.clone(), 7);
        let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
        let stores = ["i0", "i1"].map(|name| {
            let settings = CoordinationSettings { instance: name.into(), ..settings.clone() };
            Coordinated::new(shared.connect(network), Arc::new(clock.clone()), settings)
        });
        let nodes = [("large", large), ("small", small)];
        let nodes = nodes.map(|(key, rule)| RuleNode { rule: Some(rule), ..RuleNode::new(key, Values::Any) });
        let domain = Domain::new("d", nodes.into());
        let rules = RuleSet::new(&[domain], KeyHasher::random());
        sleep(Duration::from_millis(2_500)).await;
        Self { clock, shared, stores, rules }
    }

    /// Sends a request with one hit for each of `keys` to instance `i`.
    pub(crate) async fn request(&self, i: usize, keys: &[&str]) -> Decisions {
        self.request_in(Scope::Request, i, keys, 1).await
    }

    pub(crate) async fn request_in(&self, scope: Scope, i: usize, keys: &[&str], hits: u64) -> Decisions {
        let asks: Vec<Ask<'_>> = keys.iter().map(|key| Ask { hits, ..Ask::hit(key) }).collect();
        self.ask(scope, i, &asks).await
    }

    /// Sends a request with `asks` to instance `i`.
    pub(crate) async fn ask(&self, scope: Scope, i: usize, asks: &[Ask<'_>]) -> Decisions {
        let descriptors = asks.iter().map(|ask| Descriptor {
            entries: [Entry { key: ask.key, value: "v" }].into_iter().collect(),
            limit: ask.own.clone().map(Box::new),
            hits: Some(ask.hits),
            refund: ask.gives_back,
        });
        let request = Request { domain: "d", descriptors: descriptors.collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decided = self.stores[i].take(&matched.checks, scope, self.clock.now()).await;
        decided.expect("a coordinated store always decides")
    }

    /// Returns the number of commands that instance `i` has sent.
    pub(crate) fn commands(&self, i: usize) -> u64 {
        self.stores[i].coordination_metrics().store.commands.get()
    }

    /// Sends a hit for `key` to instance `i`. Returns whether it was admitted.
    pub(crate) async fn hit(&self, i: usize, key: &str) -> bool {
        !self.request(i, &[key]).await[0].over
    }

    /// Returns the hits of `large` that the store counts.
    pub(crate) fn counted(&self) -> u64 {
        let target = Target {
            path: "d|large=v".into(),
            tiers: [daily(100)].into(),
            over_limit_policy: OverLimitPolicy::Ignore,
        };
        self.shared.used(&target, self.clock.right())
    }

    pub(crate) async fn until_unavailable(&self, unavailable: bool) {
        while self.stores.iter().any(|store| store.is_store_unavailable() != unavailable) {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Returns which of `decisions` reject.
pub(crate) fn over(decisions: &[Decision]) -> Vec<bool> {
    decisions.iter().map(|decision| decision.over).collect()
}
