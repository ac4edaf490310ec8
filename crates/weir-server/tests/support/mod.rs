//! Rules built in code, and a limiter on the memory store with a manual clock.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

pub mod test_server;

use std::{collections::BTreeMap, sync::Arc};

use weir_export::snapshot::{StatValue, snapshot};
use weir_limit::{
    Descriptor, Domain, Entry, KeyHasher, Limit, Pattern, Request, Rule, RuleNode, RuleSet, Timestamp, Unit,
    Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{
    MemoryStore,
    clock::{Clock as _, ManualClock},
};

/// Returns a node for one value or pattern, or for any value if `value` is empty.
pub fn node(key: &str, value: &str) -> RuleNode {
    RuleNode::new(key, if value.is_empty() { Values::Any } else { Values::One(Pattern::new(value)) })
}

/// Returns a node whose rule admits `requests` a minute.
pub fn limited(key: &str, value: &str, requests: u32) -> RuleNode {
    let rule = Rule::new(Limit::fixed_window(requests, Unit::Minute.period()));
    RuleNode { rule: Some(rule), ..node(key, value) }
}

/// Returns `node` with its rule changed.
pub fn changed(mut node: RuleNode, change: impl FnOnce(&mut Rule)) -> RuleNode {
    change(node.rule.as_mut().expect("a node with a rule"));
    node
}

pub fn unlimited(key: &str, value: &str) -> RuleNode {
    changed(limited(key, value, 1), |rule| rule.limit = Limit::Unlimited)
}

/// Returns `node` above `children`.
pub fn above(node: RuleNode, children: Vec<RuleNode>) -> RuleNode {
    RuleNode { children, ..node }
}

pub fn rules(domain: &str, nodes: Vec<RuleNode>) -> RuleSet {
    RuleSet::new(&[Domain::new(domain, nodes)], KeyHasher::random())
}

/// A limiter with its stats and clock, without a server.
pub struct Service {
    pub limiter: Arc<Limiter<MemoryStore>>,
    pub stats: Arc<Stats>,
    pub clock: Arc<ManualClock>,
}

impl Service {
    /// Returns a service with rules in the domain `shop`.
    pub fn new(nodes: Vec<RuleNode>) -> Self {
        Self::with(nodes, Stats::default(), DecisionSettings::default())
    }

    pub fn with(nodes: Vec<RuleNode>, stats: Stats, settings: DecisionSettings) -> Self {
        let service = Self::empty(stats, settings);
        service.limiter.load(rules("shop", nodes));
        service
    }

    /// Returns a service without rules.
    pub fn empty(stats: Stats, settings: DecisionSettings) -> Self {
        let stats = Arc::new(stats);
        let limiter = Arc::new(Limiter::new(MemoryStore::new(1_000), Arc::clone(&stats), settings));
        stats.register(&limiter);
        Self { limiter, stats, clock: Arc::new(ManualClock::at(Timestamp::from_secs(12))) }
    }

    /// Decides a request with one descriptor in `shop`.
    pub async fn decide(&self, entries: &[(&str, &str)], hits: u64) {
        self.decide_all("shop", vec![descriptor(entries, hits)]).await;
    }

    pub async fn decide_all<'a>(&self, domain: &'a str, descriptors: Vec<Descriptor<'a>>) {
        let request = Request { domain, descriptors: descriptors.into(), hits: 0 };
        // the stats show the outcome
        let _ = self.limiter.decide(&request, self.clock.now(), |_| ()).await;
    }

    pub fn snapshot(&self) -> BTreeMap<String, StatValue> {
        snapshot(&self.stats)
    }

    /// Returns the counter of that name, if it exists.
    pub fn counter(&self, name: &str) -> Option<u64> {
        match self.snapshot().get(name)? {
            StatValue::Counter(value) => Some(*value),
            other => panic!("{name} is {other:?}"),
        }
    }

    /// Returns the hits of the rule of that path, if it exists.
    pub fn hits(&self, path: &str) -> Option<u64> {
        self.counter(&format!("ratelimit.service.rate_limit.{path}.total_hits"))
    }
}

pub fn descriptor<'a>(entries: &[(&'a str, &'a str)], hits: u64) -> Descriptor<'a> {
    Descriptor {
        entries: entries.iter().map(|&(key, value)| Entry { key, value }).collect(),
        hits: Some(hits),
        ..Descriptor::default()
    }
}
