//! A limiter in the process of its caller, with the store in memory.

use std::sync::Arc;

use weir_limit::{
    Code, Domain, Entry, KeyHasher, Limit, OverLimitPolicy, Period, Request, Rule, RuleNode, RuleSet, Tier,
    Timestamp, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::MemoryStore;

pub const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A limiter of one rule, for each tenant, of one tier.
pub struct InProcess(pub Limiter<MemoryStore>);

impl InProcess {
    /// Creates the limiter, and the counter of `tenant`.
    pub fn new(tenant: &str) -> Self {
        let tier = Tier::fixed_window(u32::MAX, Period::from_secs(3_600));
        let limit =
            Limit::Tiers { tiers: [tier].into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore };
        let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("tenant", Values::Any) };
        let limiter =
            Limiter::new(MemoryStore::new(100_000), Arc::new(Stats::default()), DecisionSettings::default());
        limiter.load(RuleSet::new(&[Domain::new("shop", vec![node])], KeyHasher::random()));
        let limiter = Self(limiter);
        limiter.admits(tenant, NOW);
        limiter
    }

    /// Makes a request of `tenant`, decides it, and returns whether it is admitted.
    // as in the program that measures it
    #[inline]
    pub fn admits(&self, tenant: &str, now: Timestamp) -> bool {
        let request = Request::of("shop", &[Entry { key: "tenant", value: tenant }]);
        let decided = self.0.decide_now(&request, now, |verdict| verdict.code == Code::Ok);
        decided.expect("a request with a domain and a descriptor")
    }
}
