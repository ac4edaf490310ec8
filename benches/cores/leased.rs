//! A limiter whose counters are leased from a simulated store, which a thread of its own speaks to, as in weir.

use std::{pin::pin, sync::Arc};

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Code, Coordination, Domain, Entry, KeyHasher, Limit, OverLimitPolicy, Period, Request, Rule, RuleNode,
    RuleSet, Tier, Timestamp, Values,
};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::clock::Clock as _;

/// The thread of the stores.
pub(crate) struct StoreRuntime(Runtime);

/// A limiter of one rule, for each tenant, of one tier under `lease`, with a store of its own.
pub(crate) struct Leased {
    limiter: Limiter<Coordinated<SimulatedRemote>>,
    clock: SimulatedClock,
    runtime: Handle,
}

// === impl StoreRuntime ===

impl StoreRuntime {
    /// Starts the thread.
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build();
        Self(runtime.expect("a runtime"))
    }

    /// Lets the calling thread wait for the stores.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }
}

// === impl Leased ===

impl Leased {
    /// Creates the limiter.
    pub(crate) fn new(store: &StoreRuntime) -> Self {
        let tier = Tier::fixed_window(u32::MAX, Period::from_secs(3_600));
        let limit =
            Limit::Tiers { tiers: [tier].into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore };
        let mut rule = Rule::new(limit);
        rule.coordination.mode = Some(Coordination::Lease);
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("tenant", Values::Any) };
        let _entered = store.enter();
        let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_000));
        let remote = SimulatedStore::new(clock.clone(), 1).connect(Network::default());
        let settings =
            CoordinationSettings { budget: Period::from_secs(60), ..CoordinationSettings::default() };
        let store = Coordinated::new(remote, Arc::new(clock.clone()), settings);
        let limiter = Limiter::new(store, Arc::new(Stats::default()), DecisionSettings::default());
        limiter.load(RuleSet::new(&[Domain::new("shop", vec![node])], KeyHasher::random()));
        Self { limiter, clock, runtime: Handle::current() }
    }

    /// Makes a request of `tenant`, decides it, and returns whether it is admitted. Waits for the store if there is no
    /// lease.
    pub(crate) fn admits(&self, tenant: &str) -> bool {
        let request = Request::of("shop", &[Entry { key: "tenant", value: tenant }]);
        let mut decision =
            pin!(self.limiter.decide(&request, self.clock.now(), |verdict| verdict.code == Code::Ok));
        let decided = match decision.as_mut().now_or_never() {
            Some(decided) => decided,
            None => self.runtime.block_on(decision),
        };
        decided.expect("a request with a domain and a descriptor")
    }
}
