//! Enforces a limit in this process: no server, no file, no other process.
//!
//! `cargo run` in this directory prints which of eight requests the limit admits.

use std::{sync::Arc, time::Duration};

use weir_limiter::{
    DecisionSettings, Limiter,
    clock::{Clock as _, SystemClock},
    limit::{
        Algorithm, Bucket, Code, Descriptor, Domain, Entry, KeyHasher, Limit, OverLimitPolicy, Period, Refill,
        Request, Rule, RuleNode, RuleSet, Tier, Tiers, Values,
    },
    observe::Stats,
    store::MemoryStore,
};

/// Counters that are held at most. About 100 bytes each.
const MAX_COUNTERS: usize = 100_000;

fn main() {
    let limiter = Limiter::new(
        MemoryStore::new(MAX_COUNTERS),
        Arc::new(Stats::default()),
        DecisionSettings::default(),
    );
    limiter.load(rules());

    for number in 1..=8 {
        match wait_for(&limiter, "acme") {
            None => println!("request {number}: admitted"),
            Some(wait) => println!("request {number}: rejected, retry in {:.1} s", wait.as_secs_f64()),
        }
    }
}

/// Each tenant may send 1 request a second, and up to 5 at once.
fn rules() -> RuleSet {
    let bucket = Algorithm::TokenBucket(Bucket { burst: 5, refill: Refill::Continuous, strict: false });
    let tier = Tier::new(1, Period::from_secs(1), bucket);
    let limit = Limit::Tiers { tiers: Tiers::from_iter([tier]), over_limit_policy: OverLimitPolicy::Ignore };
    let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("tenant", Values::Any) };
    RuleSet::new(&[Domain::new("shop", vec![node])], KeyHasher::random())
}

/// Takes one request of `tenant`. If it is rejected, returns how long to wait until it can pass.
fn wait_for(limiter: &Limiter<MemoryStore>, tenant: &str) -> Option<Duration> {
    let entry = Entry { key: "tenant", value: tenant };
    let descriptor = Descriptor { entries: [entry].into_iter().collect(), ..Descriptor::default() };
    let request = Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
    let decided = limiter.decide_now(&request, SystemClock.now(), |verdict| match verdict.code {
        Code::Ok => None,
        Code::OverLimit => Some(verdict.statuses[0].reset.unwrap_or_default().into()),
    });
    // the request names a domain and a descriptor, and rules are loaded: there is nothing else to fail
    decided.expect("the request is complete")
}
