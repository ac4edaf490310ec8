//! A hit of a rule whose counter is known, under a coordination mode.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::join_all};
use tokio::runtime::{Builder, Runtime};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Algorithm, Bucket, Coordination, Decision, Descriptor, Domain, Entry, KeyHasher, Limit, Matched,
    OverLimitPolicy, Period, Refill, Request, Rule, RuleNode, RuleSet, Scope, Tier, Timestamp, Values,
    share::Sharing,
};
use weir_store::{Store as _, clock::Clock as _};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A request that matches a rule, and the store with the counter of that rule, on which one hit is pending.
pub(crate) struct Hit {
    runtime: Runtime,
    store: Coordinated<SimulatedRemote>,
    matched: Matched<'static>,
    now: Timestamp,
}

/// The members of a pool.
const MEMBERS: usize = 1_000;

/// Returns the rule of the case `kind`: a window, a bucket, two windows, or a pool.
fn rule(coordination: Coordination, kind: &str) -> Rule {
    let window = |seconds| Tier::fixed_window(1_000_000_000, Period::from_secs(seconds));
    let bucket = Bucket { burst: 1_000_000_000, refill: Refill::Continuous, strict: false };
    let tiers: Vec<Tier> = match kind {
        "bucket" => vec![Tier { algorithm: Algorithm::TokenBucket(bucket), ..window(3_600) }],
        "two_windows" => vec![window(3_600), window(86_400)],
        _ => vec![window(3_600)],
    };
    let tiers = tiers.into_iter().collect();
    let mut rule = Rule::new(Limit::Tiers { tiers, over_limit_policy: OverLimitPolicy::Ignore });
    rule.coordination.mode = Some(coordination);
    rule.sharing = (kind == "pool").then(|| Arc::new(Sharing { max_members: 1_024, ..Sharing::default() }));
    rule
}

/// Returns a request of the member `tenant`, and what it matches. Both live as long as the process.
fn matched(rules: &'static RuleSet, tenant: &str, hits: u32, refund: bool) -> Matched<'static> {
    let tenant: &'static str = Box::leak(tenant.into());
    let entries = [Entry { key: "tenant", value: tenant }].into_iter().collect();
    let descriptor = Descriptor { entries, refund, ..Descriptor::default() };
    let request = Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits };
    Matched::new(rules, Box::leak(Box::new(request)))
}

impl Hit {
    /// Creates the case `name`: a mode, and `bucket`, `two_windows` or `pool` after it for another rule than one
    /// window.
    pub(crate) fn new(name: &str) -> Self {
        let (mode, kind) = name.split_once("_of_").unwrap_or((name, "window"));
        let mode = Coordination::parse(mode).expect("a coordination mode");
        let node = RuleNode { rule: Some(rule(mode, kind)), ..RuleNode::new("tenant", Values::Any) };
        let domain = Domain::new("shop", vec![node]);
        let rules = Box::leak(Box::new(RuleSet::new(&[domain], KeyHasher::random())));
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let settings =
            CoordinationSettings { budget: Period::from_secs(60), ..CoordinationSettings::default() };
        let (store, clock) = runtime.block_on(async {
            let clock = SimulatedClock::new(NOW);
            let remote = SimulatedStore::new(clock.clone(), 1).connect(Network::default());
            (Coordinated::new(remote, Arc::new(clock.clone()), settings), clock)
        });
        let mut hit = Self { runtime, store, matched: matched(rules, "acme", 1, false), now: NOW };
        let take = async |store: &Coordinated<SimulatedRemote>, matched: &Matched<'_>| {
            store.take(&matched.checks, Scope::Descriptor, clock.now()).await.expect("a decision");
        };
        hit.runtime.block_on(async {
            if kind == "pool" {
                let all: Vec<Matched<'_>> =
                    (0..MEMBERS - 1).map(|i| matched(rules, &format!("tenant-{i}"), 1, false)).collect();
                join_all(all.iter().map(|other| take(&hit.store, other))).await;
            }
            // creates the counter, and waits for the reply to its first report, or for its lease
            take(&hit.store, &hit.matched).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            if kind == "pool" {
                // hits that are given back are held for the next requests
                take(&hit.store, &matched(rules, "acme", 100, false)).await;
                take(&hit.store, &matched(rules, "acme", 100, true)).await;
            }
        });
        hit.now = clock.now();
        hit.decide();
        hit
    }

    /// Decides the request.
    pub(crate) fn decide(&self) -> Decision {
        // where it is: a caller who awaits it does not move it either
        let decisions = pin!(self.store.take(&self.matched.checks, Scope::Descriptor, self.now));
        decisions.now_or_never().expect("no decision waits").expect("a decision")[0]
    }
}
