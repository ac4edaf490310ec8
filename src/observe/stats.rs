//! The registry of everything that is counted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use parking_lot::RwLock;

pub use super::{
    counter::{Counter, Gauge},
    rule_stats::RuleStats,
};
use super::{
    histogram::Histogram,
    metric::{Metric, Source},
};
use crate::limit::RulePath;

/// Names that callers may cause to be made, unless it is said otherwise.
pub const MAX_DYNAMIC_NAMES: usize = 10_000;

/// Bytes that a name which a caller causes to be made may have. A value may be a megabyte long.
const MAX_DYNAMIC_NAME: usize = 1_024;

/// Everything that is counted. Counters outlive the rules that they were made for.
#[derive(Debug)]
pub struct Stats {
    rules: RwLock<Rules>,
    unknown_domains: RwLock<HashMap<String, Arc<Counter>, foldhash::fast::RandomState>>,
    /// Few, and sorted when they are printed.
    methods: RwLock<BTreeMap<&'static str, Arc<MethodStats>>>,
    /// Weak: what has something to tell usually holds the stats, too.
    sources: RwLock<Vec<Weak<dyn Source>>>,
    max_dynamic_names: usize,
    /// Configurations that were loaded.
    pub config_load_success: Counter,
    /// Configurations that were refused.
    pub config_load_error: Counter,
    /// When the present configuration was loaded, in seconds since the epoch; 0 before the first one.
    pub config_loaded_at: Gauge,
    /// Requests that were over, but let through because the whole service runs in shadow mode.
    pub global_shadow_mode: Counter,
    /// Requests that failed because the store did.
    pub redis_error: Counter,
    /// Requests that were no proper requests, or came before there were rules.
    pub service_error: Counter,
    /// Descriptors that were not counted under the name that their values make, because there are enough names.
    pub names_refused: Counter,
}

/// The rules' stats, by the path of the rule.
#[derive(Debug, Default)]
struct Rules {
    by_path: HashMap<Arc<RulePath>, Arc<RuleStats>, foldhash::fast::RandomState>,
    /// How many of them a caller caused to be made.
    dynamic: usize,
}

/// What is counted for one method of a door.
#[derive(Debug, Default)]
pub struct MethodStats {
    /// Calls that were begun.
    pub total_requests: Counter,
    /// How long calls took, those that the caller gave up included.
    pub response_time: Histogram,
}

/// A call that is being answered; it is over when this is dropped.
#[derive(Debug)]
#[must_use = "the call is over when this is dropped"]
pub struct Call<'a> {
    stats: &'a MethodStats,
    begun: Instant,
}

// === impl Stats ===

impl Default for Stats {
    fn default() -> Self {
        Self::new(MAX_DYNAMIC_NAMES)
    }
}

impl Stats {
    /// Stats in which callers may cause up to `max_dynamic_names` names of rules to be made, by values that are part of
    /// a name, and as many names of unknown domains.
    #[must_use]
    pub fn new(max_dynamic_names: usize) -> Self {
        Self {
            rules: RwLock::default(),
            unknown_domains: RwLock::default(),
            methods: RwLock::default(),
            sources: RwLock::default(),
            max_dynamic_names,
            config_load_success: Counter::default(),
            config_load_error: Counter::default(),
            config_loaded_at: Gauge::default(),
            global_shadow_mode: Counter::default(),
            redis_error: Counter::default(),
            service_error: Counter::default(),
            names_refused: Counter::default(),
        }
    }

    /// The counters of the rule of that path, made if there are none yet.
    #[must_use]
    pub fn rule(&self, path: &RulePath) -> Arc<RuleStats> {
        if let Some(stats) = self.rules.read().by_path.get(path) {
            return Arc::clone(stats);
        }
        self.rules.write().make(path)
    }

    /// As [`Stats::rule`], for a path that a caller's values are part of: none if there are enough of those, or if it
    /// is too long. Nothing that a caller sends makes the stats grow without end.
    #[must_use]
    pub fn dynamic_rule(&self, path: &RulePath) -> Option<Arc<RuleStats>> {
        if let Some(stats) = self.rules.read().by_path.get(path) {
            return Some(Arc::clone(stats));
        }
        let length = path.domain().len() + path.steps().iter().map(|step| step.len()).sum::<usize>();
        // a full registry is the lasting state under hostile values: it must not cost the lock
        if length > MAX_DYNAMIC_NAME || self.rules.read().dynamic >= self.max_dynamic_names {
            self.names_refused.add(1);
            return None;
        }
        let mut rules = self.rules.write();
        if let Some(stats) = rules.by_path.get(path) {
            return Some(Arc::clone(stats));
        }
        if rules.dynamic >= self.max_dynamic_names {
            self.names_refused.add(1);
            return None;
        }
        rules.dynamic += 1;
        Some(rules.make(path))
    }

    /// Every rule that has counters, in no order.
    #[must_use]
    pub fn rules(&self) -> Vec<Arc<RuleStats>> {
        self.rules.read().by_path.values().cloned().collect()
    }

    /// Notes descriptors for a domain that has no rules.
    pub fn unknown_domain(&self, domain: &str, descriptors: u64) {
        {
            let domains = self.unknown_domains.read();
            if let Some(counter) = domains.get(domain) {
                return counter.add(descriptors);
            }
            if domain.len() > MAX_DYNAMIC_NAME || domains.len() >= self.max_dynamic_names {
                return self.names_refused.add(descriptors);
            }
        }
        let mut domains = self.unknown_domains.write();
        if domains.len() < self.max_dynamic_names || domains.contains_key(domain) {
            domains.entry_ref(domain).or_default().add(descriptors);
        } else {
            self.names_refused.add(descriptors);
        }
    }

    /// Every domain that was asked for and has no rules, with the number of descriptors, in no order.
    #[must_use]
    pub fn unknown_domains(&self) -> Vec<(String, u64)> {
        let domains = self.unknown_domains.read();
        domains.iter().map(|(domain, counter)| (domain.clone(), counter.get())).collect()
    }

    /// The counters of a door's method, such as `ShouldRateLimit`. Doors keep them, so that a call costs no look-up.
    #[must_use]
    pub fn method(&self, name: &'static str) -> Arc<MethodStats> {
        Arc::clone(self.methods.write().entry(name).or_default())
    }

    /// Every method that has counters, by name.
    #[must_use]
    pub fn methods(&self) -> Vec<(&'static str, Arc<MethodStats>)> {
        self.methods.read().iter().map(|(name, stats)| (*name, Arc::clone(stats))).collect()
    }

    /// LimitChecks `source` for its numbers, too, whenever the stats are told, for as long as it lives.
    pub fn watch<S: Source>(&self, source: &Arc<S>) {
        let source: Weak<S> = Arc::downgrade(source);
        self.sources.write().push(source);
    }

    /// The numbers under names of weir's own.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::gauge("weir.build_info", "The version that runs.", 1)
                .label("version", env!("CARGO_PKG_VERSION")),
            Metric::gauge(
                "weir.config_loaded_timestamp_seconds",
                "When the present rules were loaded, in seconds since the epoch.",
                self.config_loaded_at.get(),
            ),
            Metric::counter(
                "weir.stat_names_refused",
                "Descriptors not counted under the name that their values make, because there are enough names.",
                self.names_refused.get(),
            ),
        ];
        let sources: Vec<_> = self.sources.read().iter().filter_map(Weak::upgrade).collect();
        metrics.extend(sources.iter().flat_map(|source| source.metrics()));
        metrics
    }
}

// === impl Rules ===

impl Rules {
    fn make(&mut self, path: &RulePath) -> Arc<RuleStats> {
        let path = Arc::new(path.clone());
        let made = self.by_path.entry(Arc::clone(&path)).or_insert_with(|| Arc::new(RuleStats::new(path)));
        Arc::clone(made)
    }
}

// === impl MethodStats ===

impl MethodStats {
    /// Notes that a call begins.
    pub fn begin(&self) -> Call<'_> {
        self.begin_at(Instant::now())
    }

    /// Notes a call that began at `begun`.
    pub fn begin_at(&self, begun: Instant) -> Call<'_> {
        self.total_requests.add(1);
        Call { stats: self, begun }
    }

    /// Notes so many `calls` that are over, each of which took `took`.
    pub fn record(&self, calls: u64, took: Duration) {
        self.total_requests.add(calls);
        self.response_time.record_many(calls, took);
    }
}

/// A caller that gives up has waited, so that its call counts like any other.
impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.stats.response_time.record(self.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Entry;

    fn path(value: &str) -> RulePath {
        RulePath::of_override("shop", &[Entry { key: "tenant", value }])
    }

    #[test]
    fn callers_cannot_make_names_without_end() {
        let stats = Stats::new(2);
        let _fixed = stats.rule(&path("fixed"));
        for value in ["a", "b", "a"] {
            assert!(stats.dynamic_rule(&path(value)).is_some(), "{value}");
        }
        assert!(stats.dynamic_rule(&path("c")).is_none());
        assert!(stats.dynamic_rule(&path("fixed")).is_some());
        assert_eq!((stats.rules().len(), stats.names_refused.get()), (3, 1));
        // a user's rules always have their names
        let _late = stats.rule(&path("late"));
        assert_eq!(stats.rules().len(), 4);
    }

    #[test]
    fn a_name_that_a_caller_makes_is_not_a_megabyte_long() {
        let stats = Stats::default();
        let long = "x".repeat(1 << 20);
        assert!(stats.dynamic_rule(&path(&long)).is_none());
        stats.unknown_domain(&long, 1);
        assert!(stats.rules().is_empty() && stats.unknown_domains().is_empty());
        assert_eq!(stats.names_refused.get(), 2);
    }

    #[test]
    fn unknown_domains_are_bounded_and_those_known_count_on() {
        let stats = Stats::new(1);
        stats.unknown_domain("a", 2);
        stats.unknown_domain("b", 3);
        stats.unknown_domain("a", 1);
        assert_eq!(stats.unknown_domains(), [("a".to_owned(), 3)]);
        assert_eq!(stats.names_refused.get(), 3);
    }

    #[test]
    fn a_call_that_is_given_up_counts() {
        let stats = Stats::default();
        let method = stats.method("ShouldRateLimit");
        let call = method.begin();
        assert_eq!((method.total_requests.get(), method.response_time.get().count()), (1, 0));
        drop(call);
        assert_eq!(method.response_time.get().count(), 1);
    }

    #[test]
    fn a_source_is_asked_while_it_lives() {
        struct Answer;
        impl Source for Answer {
            fn metrics(&self) -> Vec<Metric> {
                vec![Metric::gauge("weir.answer", "The answer.", 42)]
            }
        }
        let stats = Stats::default();
        let source = Arc::new(Answer);
        stats.watch(&source);
        assert!(stats.metrics().iter().any(|metric| metric.value == 42));
        drop(source);
        assert!(!stats.metrics().iter().any(|metric| metric.value == 42));
    }
}
