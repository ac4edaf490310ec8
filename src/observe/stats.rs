//! The counters, under the reference's names.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::limit::{Hits, RulePath, Tally};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// Everything that is counted. Counters outlive the rules that they were made for.
#[derive(Debug, Default)]
pub struct Stats {
    rules: RwLock<HashMap<Arc<RulePath>, Arc<RuleStats>, foldhash::fast::RandomState>>,
    unknown_domains: RwLock<HashMap<String, Arc<Counter>, foldhash::fast::RandomState>>,
    /// Configurations that were loaded.
    pub config_load_success: Counter,
    /// Configurations that were refused.
    pub config_load_error: Counter,
    /// Requests that were over, but let through because the whole service runs in shadow mode.
    pub global_shadow_mode: Counter,
    /// Requests that failed because the store did.
    pub redis_error: Counter,
    /// Requests that were no proper requests, or came before there were rules.
    pub service_error: Counter,
}

/// What is counted for one rule, in hits.
#[derive(Debug)]
pub struct RuleStats {
    /// The rule.
    pub path: Arc<RulePath>,
    /// All hits.
    pub total_hits: Counter,
    /// Hits past the limit.
    pub over_limit: Counter,
    /// Hits within the limit, but past the near-limit threshold.
    pub near_limit: Counter,
    /// Hits past the limit that were answered without asking the store.
    pub over_limit_with_local_cache: Counter,
    /// Hits of requests that were admitted.
    pub within_limit: Counter,
    /// Hits of requests that were over, but let through because the rule is in shadow mode.
    pub shadow_mode: Counter,
}

// === impl Counter ===

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        // most counters of a request do not change, and a write costs the other cores their copy of the cache line
        if n != 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Stats ===

impl Stats {
    /// The counters of the rule of that path, made if there are none yet.
    #[must_use]
    pub fn rule(&self, path: &RulePath) -> Arc<RuleStats> {
        if let Some(stats) = self.rules.read().get(path) {
            return Arc::clone(stats);
        }
        let path = Arc::new(path.clone());
        let mut rules = self.rules.write();
        let made = rules.entry(Arc::clone(&path)).or_insert_with(|| Arc::new(RuleStats::new(path)));
        Arc::clone(made)
    }

    /// Every rule that has counters, in no order.
    #[must_use]
    pub fn rules(&self) -> Vec<Arc<RuleStats>> {
        self.rules.read().values().cloned().collect()
    }

    /// Notes a descriptor for a domain that has no rules.
    pub fn unknown_domain(&self, domain: &str, descriptors: u64) {
        if let Some(counter) = self.unknown_domains.read().get(domain) {
            return counter.add(descriptors);
        }
        self.unknown_domains.write().entry_ref(domain).or_default().add(descriptors);
    }

    /// Every domain that was asked for and has no rules, with the number of descriptors, in no order.
    #[must_use]
    pub fn unknown_domains(&self) -> Vec<(String, u64)> {
        let domains = self.unknown_domains.read();
        domains.iter().map(|(domain, counter)| (domain.clone(), counter.get())).collect()
    }
}

// === impl RuleStats ===

impl RuleStats {
    fn new(path: Arc<RulePath>) -> Self {
        Self {
            path,
            total_hits: Counter::default(),
            over_limit: Counter::default(),
            near_limit: Counter::default(),
            over_limit_with_local_cache: Counter::default(),
            within_limit: Counter::default(),
            shadow_mode: Counter::default(),
        }
    }

    /// Notes `hits`, which fared as `tally` says and, if `shadowed`, were let through all the same.
    pub fn record(&self, hits: Hits, tally: Tally, shadowed: bool) {
        self.total_hits.add(hits.0);
        self.over_limit.add(tally.over_limit);
        self.near_limit.add(tally.near_limit);
        self.within_limit.add(tally.within_limit);
        if shadowed {
            self.shadow_mode.add(hits.0);
        }
    }
}
