//! A hit of a rule whose counter is known, under a coordination mode.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime};
use weir::{
    clock::Clock as _,
    limit::{
        Algorithm, Bucket, Coordination, Decision, Descriptor, Domain, Entry, KeyHasher, Limit, Matched,
        OverLimitPolicy, Period, Refill, Request, Rule, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
    },
    store::{
        Store as _,
        coordinated::{Coordinated, CoordinationSettings},
        simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
    },
};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A request that matches a rule, and the store with the counter of that rule, on which one hit is pending.
pub(crate) struct Hit {
    runtime: Runtime,
    store: Coordinated<SimulatedRemote>,
    matched: Matched<'static>,
    now: Timestamp,
}

/// Returns the request, and what it matches. Both live as long as the process.
fn matched(coordination: Coordination, algorithm: Algorithm) -> Matched<'static> {
    let tier = Tier { requests: 1_000_000_000, period: Period::from_secs(3_600), algorithm };
    let limit = Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore };
    let mut rule = Rule::new(limit);
    rule.coordination.mode = Some(coordination);
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("tenant", Values::Any) };
    let domain = Domain::new("shop", vec![node]);
    let rules = Box::leak(Box::new(RuleSet::new(&[domain], KeyHasher::random())));
    let entries = [Entry { key: "tenant", value: "acme" }].into_iter().collect();
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    let request = Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    Matched::new(rules, Box::leak(Box::new(request)))
}

impl Hit {
    /// Creates the case `name`: a mode, and `bucket` after it for a token bucket.
    pub(crate) fn new(name: &str) -> Self {
        let (mode, algorithm) = name.split_once("_of_").unwrap_or((name, "window"));
        let bucket = Bucket { burst: 1_000_000_000, refill: Refill::Continuous, strict: false };
        let algorithm =
            if algorithm == "bucket" { Algorithm::TokenBucket(bucket) } else { Algorithm::FixedWindow };
        let mode = Coordination::parse(mode).expect("a coordination mode");
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let settings =
            CoordinationSettings { budget: Period::from_secs(60), ..CoordinationSettings::default() };
        let (store, clock) = runtime.block_on(async {
            let clock = SimulatedClock::new(NOW);
            let remote = SimulatedStore::new(clock.clone(), 1).connect(Network::default());
            (Coordinated::new(remote, Arc::new(clock.clone()), settings), clock)
        });
        let mut hit = Self { runtime, store, matched: matched(mode, algorithm), now: NOW };
        hit.runtime.block_on(async {
            // creates the counter, and waits for the reply to its first report, or for its lease
            hit.store.take(&hit.matched.checks, Scope::Descriptor, NOW).await.expect("a decision");
            tokio::time::sleep(Duration::from_millis(300)).await;
        });
        hit.now = clock.now();
        hit.decide();
        hit
    }

    /// Decides the request.
    pub(crate) fn decide(&self) -> Decision {
        let decisions = self.store.take(&self.matched.checks, Scope::Descriptor, self.now).now_or_never();
        decisions.expect("no decision waits").expect("a decision")[0]
    }
}
