//! A limiter in the process of its caller, and requests of two descriptors of three entries.

use std::sync::Arc;

use weir_benches::in_process::NOW;
use weir_limit::{
    Code, Descriptor, Domain, Entry, KeyHasher, Limit, OverLimitPolicy, Period, Request, Rule, RuleNode,
    RuleSet, Tier, Timestamp, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::MemoryStore;

/// A limiter of one rule of two tiers, for each tenant, path and method.
pub(crate) struct TwoByThree(Limiter<MemoryStore>);

impl TwoByThree {
    /// Creates the limiter, and the counters of `tenant`.
    pub(crate) fn new(tenant: &str) -> Self {
        let tier = |seconds| Tier::fixed_window(u32::MAX, Period::from_secs(seconds));
        let tiers = [tier(60), tier(3_600)].into_iter().collect();
        let mut rule = Some(Rule::new(Limit::Tiers { tiers, over_limit_policy: OverLimitPolicy::Ignore }));
        let mut nodes = Vec::new();
        for key in ["method", "path", "tenant"] {
            nodes = vec![RuleNode { rule: rule.take(), children: nodes, ..RuleNode::new(key, Values::Any) }];
        }
        let limiter =
            Limiter::new(MemoryStore::new(100_000), Arc::new(Stats::default()), DecisionSettings::default());
        limiter.load(RuleSet::new(&[Domain::new("shop", nodes)], KeyHasher::random()));
        let limiter = Self(limiter);
        limiter.admits(tenant, NOW);
        limiter
    }

    /// Makes a request of `tenant`, decides it, and returns whether it is admitted.
    pub(crate) fn admits(&self, tenant: &str, now: Timestamp) -> bool {
        let descriptors = [tenant, "beta"].map(|tenant| Descriptor {
            entries: [("tenant", tenant), ("path", "/v1/orders"), ("method", "GET")]
                .into_iter()
                .map(|(key, value)| Entry { key, value })
                .collect(),
            ..Descriptor::default()
        });
        let request = Request { domain: "shop", descriptors: descriptors.into(), hits: 0 };
        let decided = self.0.decide_now(&request, now, |verdict| verdict.code == Code::Ok);
        decided.expect("a request with a domain and a descriptor")
    }
}
