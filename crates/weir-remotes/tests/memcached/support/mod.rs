//! Real Memcached servers on free ports, and instances in the test's process that share them.

use std::{sync::Arc, time::Duration};

use weir_coordinate::{Coordinated, CoordinationSettings};
use weir_limit::{
    Coordination, Decision, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OnStoreFailure,
    OverLimitPolicy, Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier, Timestamp,
    Values,
};
use weir_remotes::memcached::{Address, MemcachedRemote, MemcachedSettings, ServerSource};
use weir_store::{
    Store as _,
    clock::{Clock, SystemClock},
};

pub(crate) use weir_testing::{memcached_server::Server, wait::until};

/// The longest window of the tests, which no test can see the end of.
pub(crate) const YEAR: u64 = 365 * 86_400;

/// Returns settings for `servers`, in their order.
pub(crate) fn settings(servers: &[&Server]) -> MemcachedSettings {
    let addresses = servers.iter().map(|server| Address::tcp("127.0.0.1", server.port())).collect();
    MemcachedSettings {
        timeout: Duration::from_secs(5),
        ..MemcachedSettings::new(ServerSource::List(addresses))
    }
}

/// Returns a fixed window.
pub(crate) fn window(requests: u32, seconds: u64) -> Tier {
    Tier::fixed_window(requests, Period::from_secs(seconds))
}

/// A clock that the test sets.
pub(crate) struct SetClock(parking_lot::Mutex<Timestamp>);

impl SetClock {
    pub(crate) fn at(seconds: u64) -> Arc<Self> {
        Arc::new(Self(parking_lot::Mutex::new(Timestamp::from_secs(seconds))))
    }

    pub(crate) fn set(&self, now: Timestamp) {
        *self.0.lock() = now;
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// One instance, with a rule for every value of the key `k` in the domain `fleet`.
pub(crate) struct Instance {
    pub(crate) store: Coordinated<MemcachedRemote>,
    clock: Arc<dyn Clock>,
    rules: RuleSet,
}

// === impl Instance ===

impl Instance {
    /// Creates one that limits by `tiers` in `mode`, and rejects what it decides without the store: then a machine that
    /// stops for a while exceeds no limit.
    pub(crate) fn new(
        settings: MemcachedSettings,
        tiers: &[Tier],
        over_limit_policy: OverLimitPolicy,
        mode: Coordination,
    ) -> Self {
        let coordination = RuleCoordination {
            mode: Some(mode),
            on_store_failure: Some(OnStoreFailure::Deny),
            ..RuleCoordination::default()
        };
        let limit = Limit::Tiers { tiers: tiers.iter().cloned().collect(), over_limit_policy };
        Self::with(settings, Rule { coordination, ..Rule::new(limit) }, Arc::new(SystemClock))
    }

    /// Creates one with `rule` and a clock.
    pub(crate) fn with(settings: MemcachedSettings, rule: Rule, clock: Arc<dyn Clock>) -> Self {
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("fleet", vec![node])], KeyHasher::random());
        let remote = MemcachedRemote::new(settings, Arc::clone(&clock)).expect("no files are needed");
        // a generous budget and slow heartbeats, since a busy machine delays both
        let own = CoordinationSettings {
            budget: Period::from_secs(10),
            heartbeat: Period::from_millis(500),
            ..CoordinationSettings::default()
        };
        Self { store: Coordinated::new(remote, Arc::clone(&clock), own), clock, rules }
    }

    pub(crate) async fn wait_until_connected(&self) {
        until("memcached is connected", async || self.store.remote().state().is_connected()).await;
    }

    /// Sends `hits` for the counter of `value`. Returns the decision.
    pub(crate) async fn send(&self, value: &str, hits: u64) -> Decision {
        self.decide(value, hits, false, Scope::Descriptor).await
    }

    /// Gives `hits` of the counter of `value` back.
    pub(crate) async fn give_back(&self, value: &str, hits: u64) -> Decision {
        self.decide(value, hits, true, Scope::Descriptor).await
    }

    pub(crate) async fn decide(&self, value: &str, hits: u64, gives_back: bool, scope: Scope) -> Decision {
        let entries = [Entry { key: "k", value }];
        let descriptor = Descriptor {
            entries: entries.into_iter().collect(),
            hits: Some(hits),
            refund: gives_back,
            ..Descriptor::default()
        };
        let request = Request { domain: "fleet", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, scope, self.clock.now()).await;
        decisions.expect("a coordinated store always decides")[0]
    }
}
