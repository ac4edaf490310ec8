use std::sync::atomic::{AtomicBool, Ordering};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use parking_lot::RwLock;

use super::{
    caller_names::CallerNames,
    counter::{Counter, Gauge},
    method_stats::MethodStats,
    metric::{Metric, Source},
    rule_limit::RuleLimit,
    rule_stats::{RuleCounts, RuleStats},
};
use super::{histogram::Refinement, sanitize::sanitize};

pub const MAX_DYNAMIC_NAMES: usize = 10_000;

/// The longest name that a caller may create, in bytes. A value may be a megabyte long.
const MAX_DYNAMIC_NAME: usize = 1_024;

/// The bytes of all names that callers created. Each name is on a page nine times, or more often with tiers.
const MAX_DYNAMIC_BYTES: usize = 1 << 20;

/// How often a rule not in force is aged before it is forgotten: a day, if that is every five minutes.
const MAX_ABSENCE: u16 = 288;

/// Bounds on rules that have stats but are not in force: reloads may bring other rules every second.
const MAX_ABSENT: usize = 1_000;
const MAX_ABSENT_BYTES: usize = 256 << 10;

/// All stats of the process. Counters outlive their rules by a day, unless many rules are gone. A rule's name is its
/// domain, then the steps below it, such as `["shop", "tenant_acme"]`.
#[derive(Debug, Default)]
pub struct Stats {
    rules: RwLock<RuleTable>,
    unknown_domains: CallerNames,
    unknown_keys: CallerNames,
    rule_limits: ArcSwap<Vec<RuleLimit>>,
    methods: RwLock<BTreeMap<&'static str, Arc<MethodStats>>>,
    refinement: RwLock<Option<Refinement>>,
    /// Weak: a source usually holds the stats, too.
    sources: RwLock<Vec<Weak<dyn Source>>>,
    max_dynamic_names: MaxDynamicNames,
    replaces_dots: AtomicBool,
    pub config_load_success: Counter,
    pub config_load_error: Counter,
    /// 1 while the newest configuration is rejected, and an earlier one or none is in force; otherwise 0.
    pub config_rejected: Gauge,
    /// When the current configuration was loaded, in seconds since the epoch; 0 before the first one.
    pub config_loaded_at: Gauge,
    /// Requests over their limit that were admitted because the whole service runs in shadow mode.
    pub global_shadow_mode: Counter,
    /// Requests that failed because the store did.
    pub redis_error: Counter,
    /// Requests that were malformed, or arrived before there were rules.
    pub service_error: Counter,
    /// Descriptors that were not counted under the name that their values make, because a bound on names was reached.
    pub names_rejected: Counter,
}

#[derive(Debug)]
struct MaxDynamicNames(usize);

type SharedName = Arc<[Box<str>]>;

#[derive(Debug, Default)]
struct RuleTable {
    by_name: HashMap<SharedName, Known, foldhash::fast::RandomState>,
    /// Of each name that callers created for a rule, the name of the rule.
    declared: Vec<(SharedName, SharedName)>,
    /// Names that callers created, and their bytes.
    dynamic: usize,
    dynamic_bytes: usize,
    loads: u64,
}

#[derive(Debug)]
struct Known {
    stats: Arc<RuleStats>,
    /// None for a rule in force, and for a name that callers created.
    absence: Option<Absence>,
}

#[derive(Clone, Copy, Debug)]
struct Absence {
    /// The number of the load that did not have it.
    since: u64,
    age: u16,
}

// === impl Stats ===

impl Default for MaxDynamicNames {
    fn default() -> Self {
        Self(MAX_DYNAMIC_NAMES)
    }
}

impl Stats {
    /// Callers may create up to `max_dynamic_names` names of rules, from values that are part of a name.
    pub fn new(max_dynamic_names: usize) -> Self {
        Self { max_dynamic_names: MaxDynamicNames(max_dynamic_names), ..Self::default() }
    }

    /// Of decisions that nobody has asked for now, such as replayed ones: names without a rule are counted, and not logged.
    pub fn silent() -> Self {
        Self {
            unknown_domains: CallerNames::silent(),
            unknown_keys: CallerNames::silent(),
            ..Self::default()
        }
    }

    /// From now on `_` replaces dots in keys and values in names of stats, so that each is one step.
    pub fn replace_dots(&self) {
        self.replaces_dots.store(true, Ordering::Relaxed);
    }

    /// A rule's name as outputs show it, its domain first.
    pub fn shown(&self, name: &[Box<str>]) -> Vec<String> {
        let replaces = self.replaces_dots.load(Ordering::Relaxed);
        let shown = name.iter().map(|part| sanitize(part)).enumerate();
        shown.map(|(i, part)| if replaces && i > 0 { part.replace('.', "_") } else { part }).collect()
    }

    /// Returns the stats of the rule called `name`, creating them if needed.
    pub fn rule(&self, name: &[Box<str>]) -> Arc<RuleStats> {
        if let Some(known) = self.rules.read().by_name.get(name) {
            return Arc::clone(&known.stats);
        }
        self.rules.write().create(name, RuleStats::new)
    }

    /// Like [`Stats::rule`], for a name with a caller's values: none if it is too long, or is one too many. The name also
    /// gets the limits of the rule whose stats are `declared`.
    pub fn dynamic_rule(&self, name: &[Box<str>], declared: Option<&RuleStats>) -> Option<Arc<RuleStats>> {
        let length = name.iter().map(|part| part.len()).sum::<usize>();
        let known_or_rejected = |rules: &RuleTable| {
            let known = rules.by_name.get(name).map(|known| Arc::clone(&known.stats));
            let is_full = known.is_none() && !rules.has_room(length, self.max_dynamic_names.0);
            if is_full {
                self.names_rejected.add(1);
            }
            (known.is_some() || is_full).then_some(known)
        };
        // a full registry is the lasting state under hostile values: it must not cost the write lock
        if let Some(found) = known_or_rejected(&self.rules.read()) {
            return found;
        }
        let mut rules = self.rules.write();
        if let Some(found) = known_or_rejected(&rules) {
            return found;
        }
        rules.dynamic += 1;
        rules.dynamic_bytes += length;
        let stats = rules.create(name, RuleStats::dynamic);
        if let Some(declared) = declared {
            rules.declared.push((stats.shared_name(), declared.shared_name()));
        }
        Some(stats)
    }

    pub fn rules(&self) -> Vec<Arc<RuleStats>> {
        self.rules.read().by_name.values().map(|known| Arc::clone(&known.stats)).collect()
    }

    /// Returns the hits of each name that no caller has created, with those of the names that callers created for it.
    pub fn counts_by_rule(&self) -> HashMap<Arc<[Box<str>]>, RuleCounts, foldhash::fast::RandomState> {
        let rules = self.rules.read();
        let mut counts: HashMap<SharedName, RuleCounts, foldhash::fast::RandomState> = HashMap::default();
        for (name, known) in rules.by_name.iter().filter(|(_, known)| known.stats.is_declared()) {
            counts.insert(Arc::clone(name), known.stats.get());
        }
        for (name, declared) in &rules.declared {
            if let (Some(known), Some(sum)) = (rules.by_name.get(name), counts.get_mut(declared)) {
                *sum = sum.plus(known.stats.get());
            }
        }
        counts
    }

    /// Says which rules are in force. Stats of others are forgotten after a day; beyond a thousand, the oldest at once.
    pub fn set_in_force(&self, in_force: &[Arc<RuleStats>]) {
        let mut rules = self.rules.write();
        rules.loads += 1;
        let absence = Absence { since: rules.loads, age: 0 };
        for known in rules.by_name.values_mut().filter(|known| known.stats.is_declared()) {
            known.absence.get_or_insert(absence);
        }
        for stats in in_force {
            // another load may have forgotten them meanwhile
            rules
                .by_name
                .entry(stats.shared_name())
                .or_insert_with(|| Known::new(Arc::clone(stats)))
                .absence = None;
        }
        let forgotten = rules.forget_oldest();
        // freed after the lock: requests may need a name
        drop(rules);
        drop(forgotten);
    }

    pub fn set_rule_limits(&self, limits: Vec<RuleLimit>) {
        self.rule_limits.store(Arc::new(limits));
    }

    /// Returns the limits of the current rules, also under the names that callers created for them.
    pub fn rule_limits(&self) -> Vec<RuleLimit> {
        let declared = self.rule_limits.load();
        let mut by_name: HashMap<&[Box<str>], Vec<&RuleLimit>, foldhash::fast::RandomState> =
            HashMap::default();
        for limit in declared.iter() {
            by_name.entry(&limit.name).or_default().push(limit);
        }
        let mut limits: Vec<RuleLimit> = declared.iter().cloned().collect();
        for (name, rule) in &self.rules.read().declared {
            let of_rule = by_name.get(&**rule).into_iter().flatten();
            limits.extend(of_rule.map(|limit| RuleLimit { name: (**name).into(), ..(*limit).clone() }));
        }
        limits
    }

    /// Counts `descriptors` for a domain without rules. A thousand have names of up to 64 bytes; others share one.
    pub fn unknown_domain(&self, domain: &str, descriptors: u64) {
        if !self.unknown_domains.add(domain, "", descriptors) {
            self.names_rejected.add(descriptors);
        }
    }

    /// Returns every requested domain that has no rules, with its number of descriptors, in no order.
    pub fn unknown_domains(&self) -> Vec<(String, u64)> {
        self.unknown_domains
            .get()
            .into_iter()
            .map(|((domain, _), descriptors)| (domain, descriptors))
            .collect()
    }

    /// Counts a descriptor whose `key` no rule has at this level. The first thousand have names; the others share one.
    pub fn unknown_key(&self, domain: &str, key: &str) {
        if !self.unknown_keys.add(domain, key, 1) {
            self.names_rejected.add(1);
        }
    }

    /// Returns every key that was asked for where no rule has it, as [`Stats::unknown_key`] counts them, in no order.
    pub fn unknown_keys(&self) -> Vec<((String, String), u64)> {
        self.unknown_keys.get()
    }

    /// Forgets names without a rule that nobody asked for during 12 calls, and rules not in force for 288 calls.
    pub fn age_names(&self) {
        self.unknown_domains.age();
        self.unknown_keys.age();
        self.rules.write().by_name.retain(|_, known| {
            let Some(absence) = &mut known.absence else { return true };
            absence.age += 1;
            absence.age < MAX_ABSENCE
        });
    }

    /// Returns the stats of a method, creating them if needed. Servers keep them, so that a call needs no look-up.
    pub fn method(&self, name: &'static str) -> Arc<MethodStats> {
        let mut methods = self.methods.write();
        if let Some(stats) = methods.get(name) {
            return Arc::clone(stats);
        }
        let stats = MethodStats::default();
        let stats = self.refinement.read().as_ref().map_or(stats, MethodStats::refined);
        let stats = Arc::new(stats);
        methods.insert(name, Arc::clone(&stats));
        stats
    }

    /// Lets the response times of methods that are created from now on have the buckets of `refinement`.
    pub fn refine(&self, refinement: Refinement) {
        *self.refinement.write() = Some(refinement);
    }

    pub fn methods(&self) -> Vec<(&'static str, Arc<MethodStats>)> {
        self.methods.read().iter().map(|(name, stats)| (*name, Arc::clone(stats))).collect()
    }

    /// Reports the metrics of `source`, too, for as long as it lives.
    pub fn register<S: Source>(&self, source: &Arc<S>) {
        let source: Weak<S> = Arc::downgrade(source);
        self.sources.write().push(source);
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::gauge("weir.build_info", "The running version.", 1)
                .label("version", env!("CARGO_PKG_VERSION")),
            Metric::gauge(
                "weir.config_loaded_timestamp_seconds",
                "When the current rules were loaded, in seconds since the epoch.",
                self.config_loaded_at.get(),
            ),
            Metric::gauge(
                "weir.rules_rejected",
                "1 while the newest rules are rejected, and the previous ones or none are in force.",
                self.config_rejected.get(),
            ),
            Metric::counter(
                "weir.stat_names_rejected",
                "Descriptors not counted under their own stat name, because the bound on names was reached.",
                self.names_rejected.get(),
            ),
        ];
        metrics.extend(self.unknown_keys().into_iter().map(|((domain, key), descriptors)| {
            let help = "Descriptors that no rule matches, because none has this key at its level.";
            let metric = Metric::counter("weir.unmatched_descriptors", help, descriptors);
            metric.label("domain", domain).label("key", key)
        }));
        let sources: Vec<_> = self.sources.read().iter().filter_map(Weak::upgrade).collect();
        metrics.extend(sources.iter().flat_map(|source| source.metrics()));
        metrics
    }
}

// === impl RuleTable ===

impl RuleTable {
    fn has_room(&self, length: usize, max: usize) -> bool {
        length <= MAX_DYNAMIC_NAME
            && self.dynamic < max
            && self.dynamic_bytes.saturating_add(length) <= MAX_DYNAMIC_BYTES
    }

    fn create(
        &mut self,
        name: &[Box<str>],
        empty: impl FnOnce(Arc<[Box<str>]>) -> RuleStats,
    ) -> Arc<RuleStats> {
        let name: Arc<[Box<str>]> = name.into();
        let known =
            self.by_name.entry(Arc::clone(&name)).or_insert_with(|| Known::new(Arc::new(empty(name))));
        Arc::clone(&known.stats)
    }

    /// Returns what it removes. Names that callers created stay: another rule may have them now.
    fn forget_oldest(&mut self) -> Vec<(SharedName, Known)> {
        let absent = self.by_name.iter().filter_map(|(name, known)| Some((known.absence?.since, name)));
        let mut absent: Vec<_> = absent.map(|(since, name)| (Reverse(since), Arc::clone(name))).collect();
        // by name among those of one load, so that what stays is the same everywhere
        absent.sort_unstable();
        let mut bytes = 0;
        let kept = absent.iter().take(MAX_ABSENT).take_while(|(_, name)| {
            bytes += name.iter().map(|part| part.len()).sum::<usize>();
            bytes <= MAX_ABSENT_BYTES
        });
        let kept = kept.count();
        absent[kept..].iter().filter_map(|(_, name)| self.by_name.remove_entry(name)).collect()
    }
}

// === impl Known ===

impl Known {
    const fn new(stats: Arc<RuleStats>) -> Self {
        Self { stats, absence: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(value: &str) -> [Box<str>; 2] {
        ["shop".into(), format!("tenant_{value}").into()]
    }

    #[test]
    fn names_that_callers_create_are_bounded() {
        let stats = Stats::new(2);
        let _fixed = stats.rule(&name("fixed"));
        for value in ["a", "b", "a"] {
            assert!(stats.dynamic_rule(&name(value), None).is_some(), "{value}");
        }
        assert!(stats.dynamic_rule(&name("c"), None).is_none());
        assert!(stats.dynamic_rule(&name("fixed"), None).is_some());
        assert_eq!((stats.rules().len(), stats.names_rejected.get()), (3, 1));
        // names of declared rules are not bounded
        let _late = stats.rule(&name("late"));
        assert_eq!(stats.rules().len(), 4);
    }

    #[test]
    fn rules_that_were_not_in_force_for_a_day_are_forgotten() {
        let stats = Stats::new(2);
        let [kept, gone] = ["kept", "gone"].map(|value| stats.rule(&name(value)));
        let of_gone = stats.dynamic_rule(&name("a"), Some(&gone)).expect("there is room");
        // a rule may have a name that callers had created before
        stats.set_in_force(&[kept.clone(), gone.clone(), of_gone]);
        let age = |calls: u16| (0..calls).for_each(|_| stats.age_names());
        age(MAX_ABSENCE + 1);
        assert_eq!(stats.rules().len(), 3);
        stats.set_in_force(std::slice::from_ref(&kept));
        age(MAX_ABSENCE - 1);
        // it was in force again for a moment
        stats.set_in_force(&[kept.clone(), gone]);
        age(1);
        stats.set_in_force(std::slice::from_ref(&kept));
        age(MAX_ABSENCE - 1);
        assert_eq!(stats.rules().len(), 3);
        age(1);
        let names: BTreeMap<String, bool> =
            stats.rules().iter().map(|rule| (rule.name()[1].to_string(), rule.is_declared())).collect();
        let expected = [("tenant_a", false), ("tenant_kept", true)];
        assert_eq!(names, expected.map(|(name, declared)| (name.to_owned(), declared)).into());
    }

    #[test]
    fn of_many_rules_that_are_gone_those_of_the_last_loads_are_kept() {
        let stats = Stats::default();
        let load = |generation: usize, rules: usize, length: usize| {
            let named = |i: usize| name(&format!("{generation}-{i}-{}", "x".repeat(length)));
            let rules: Vec<_> = (0..rules).map(|i| stats.rule(&named(i))).collect();
            stats.set_in_force(&rules);
        };
        let generations = || {
            let generation = |rule: &Arc<RuleStats>| {
                rule.name()[1]["tenant_".len()..].split('-').next().map(str::to_owned)
            };
            let mut counts = BTreeMap::new();
            for rule in stats.rules() {
                *counts.entry(generation(&rule).expect("a generation")).or_insert(0) += 1;
            }
            counts.into_values().collect::<Vec<_>>()
        };
        let _by_caller = stats.dynamic_rule(&name("0-a"), None).expect("there is room");
        load(1, 5_000, 1);
        assert_eq!(generations(), [1, 5_000]);
        load(2, MAX_ABSENT - 1, 1);
        assert_eq!(generations(), [1, MAX_ABSENT, MAX_ABSENT - 1]);
        load(3, 2, 1);
        assert_eq!(generations(), [1, 1, MAX_ABSENT - 1, 2]);
        load(4, 2, 100_000);
        assert_eq!(generations(), [1, MAX_ABSENT - 2, 2, 2]);
        load(5, 1, 100_000);
        load(6, 1, 1);
        // long names have less room: some 200 KB of three of them, and few others
        assert_eq!(generations()[0], 1);
        let bytes: usize =
            stats.rules().iter().flat_map(|rule| rule.name().to_vec()).map(|part| part.len()).sum();
        assert!(bytes < MAX_ABSENT_BYTES + 1_000, "{bytes}");
        assert!(stats.rules().len() > 2);
    }

    #[test]
    fn the_length_of_names_that_callers_create_is_bounded() {
        let stats = Stats::default();
        assert!(stats.dynamic_rule(&name(&"x".repeat(1 << 20)), None).is_none());
        assert!(stats.rules().is_empty());
        assert_eq!(stats.names_rejected.get(), 1);
    }

    #[test]
    fn the_bytes_of_all_names_that_callers_create_are_bounded() {
        let stats = Stats::default();
        let long = |i: usize| name(&format!("{i}{}", "x".repeat(1_000)));
        for i in 0..MAX_DYNAMIC_NAMES {
            let _one = stats.dynamic_rule(&long(i), None);
        }
        let bytes: usize =
            stats.rules().iter().flat_map(|rule| rule.name().to_vec()).map(|part| part.len()).sum();
        assert!((MAX_DYNAMIC_BYTES / 2..=MAX_DYNAMIC_BYTES).contains(&bytes), "{bytes}");
        assert!(stats.dynamic_rule(&long(0), None).is_some(), "names that exist keep counting");
    }

    #[test]
    fn domains_without_a_name_of_their_own_are_counted_as_rejected() {
        let stats = Stats::default();
        for i in 0..1_001 {
            stats.unknown_domain(&i.to_string(), 3);
        }
        assert_eq!((stats.unknown_domains().len(), stats.names_rejected.get()), (1_001, 3));
        for _ in 0..13 {
            stats.age_names();
        }
        assert_eq!(stats.unknown_domains().len(), 1);
    }

    #[test]
    fn a_source_is_reported_while_it_lives() {
        struct FixedSource;
        impl Source for FixedSource {
            fn metrics(&self) -> Vec<Metric> {
                vec![Metric::gauge("weir.fixed", "A fixed value.", 42)]
            }
        }
        let stats = Stats::default();
        let source = Arc::new(FixedSource);
        stats.register(&source);
        assert!(stats.metrics().iter().any(|metric| metric.value == 42));
        drop(source);
        assert!(!stats.metrics().iter().any(|metric| metric.value == 42));
    }
}
