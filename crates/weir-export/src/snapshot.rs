//! A snapshot of the stats under dotted names, as envoyproxy/ratelimit sends them to statsd and prints them at
//! `/stats`.

use std::collections::{BTreeMap, btree_map::Entry};

use weir_observe::{
    histogram::Distribution,
    metric::{Metric, MetricKind},
    rule_limit,
    rule_stats::{NEGATIVE_HITS, RareCounts, RuleCounts, ShadowCounts},
    sanitize::sanitize,
    stats::Stats,
};

const DOMAIN_NOT_FOUND: &str = ".domain_not_found";

/// The current value of one stat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatValue {
    /// A value that only grows.
    Counter(u64),
    /// A value that goes up and down.
    Gauge(u64),
    /// Durations, by their length.
    Timing(Box<Distribution>),
}

/// Returns all stats by their dotted names.
#[must_use]
pub fn snapshot(stats: &Stats) -> BTreeMap<String, StatValue> {
    let mut values = reference(stats);
    for (in_shadow, prefix) in [(false, "weir.rule_limit"), (true, "weir.shadow_limit")] {
        for ((name, per), (requests, _)) in
            rule_limit::series(&stats.rule_limits(), in_shadow, |name| stats.shown(name))
        {
            let name = format!("{prefix}.{}.{per}", name.join("."));
            values.insert(name, StatValue::Gauge(u64::from(requests)));
        }
    }
    for (name, counts) in shadow_counts(stats) {
        let name = name.join(".");
        for (prefix, value) in counts.named() {
            values.insert(format!("{prefix}.{name}"), StatValue::Counter(value));
        }
    }
    for RareFamily { metric, series, .. } in rare_families(stats) {
        for RareSeries { rule, reason, value } in series {
            let reason = reason.map(|reason| format!(".{reason}")).unwrap_or_default();
            values.insert(format!("{metric}.{}{reason}", rule.join(".")), StatValue::Counter(value));
        }
    }
    for (name, value) in stats.metrics().iter().map(own_metric) {
        // labels of callers may be the same steps of a name
        match (values.get_mut(&name), value) {
            (Some(StatValue::Counter(sum)), StatValue::Counter(more)) => *sum = sum.saturating_add(more),
            (_, value) => {
                values.insert(name, value);
            }
        }
    }
    values
}

/// Returns, by sanitized name, the counts of each rule that has, or had, a limit in its shadow.
pub(super) fn shadow_counts(stats: &Stats) -> BTreeMap<Vec<String>, ShadowCounts> {
    let limits = stats.rule_limits();
    let mut counts: BTreeMap<Vec<String>, ShadowCounts> = limits
        .iter()
        .filter(|limit| limit.in_shadow)
        .map(|limit| (stats.shown(&limit.name), ShadowCounts::default()))
        .collect();
    for rule in stats.rules() {
        let counted = rule.shadow();
        if counted != ShadowCounts::default() {
            let sum = counts.entry(stats.shown(rule.name())).or_default();
            *sum = sum.plus(counted);
        }
    }
    counts
}

/// A counter of rules that exists only for those that have counted something.
pub(super) struct RareFamily {
    pub(super) metric: &'static str,
    pub(super) help: &'static str,
    pub(super) series: Vec<RareSeries>,
}

pub(super) struct RareSeries {
    pub(super) rule: Vec<String>,
    pub(super) reason: Option<&'static str>,
    pub(super) value: u64,
}

pub(super) fn rare_families(stats: &Stats) -> [RareFamily; 3] {
    let mut rules: BTreeMap<Vec<String>, (RareCounts, u64)> = BTreeMap::new();
    for rule in stats.rules().iter().filter(|rule| rule.rare() != RareCounts::default()) {
        let name = stats.shown(rule.name());
        let (sum, over) = rules.entry(name).or_default();
        *sum = sum.plus(rule.rare());
        *over = over.saturating_add(rule.get().over_limit);
    }
    let [mut over_limit, mut returned, mut denied] = [const { Vec::new() }; 3];
    for (rule, (counts, over)) in rules {
        let push = |series: &mut Vec<RareSeries>, reason, value| {
            series.push(RareSeries { rule: rule.clone(), reason, value });
        };
        if counts.over_without_store > 0 {
            push(&mut over_limit, Some("limit"), over.saturating_sub(counts.over_without_store));
            push(&mut over_limit, Some("store"), counts.over_without_store);
        }
        if counts.returned > 0 {
            push(&mut returned, None, counts.returned);
        }
        if counts.return_denied > 0 {
            push(&mut denied, None, counts.return_denied);
        }
    }
    [
        RareFamily {
            metric: "weir.over_limit_hits",
            help: "Hits past the limit, by what rejected them, of rules that rejected some without the store.",
            series: over_limit,
        },
        RareFamily {
            metric: "weir.hits_returned",
            help: "Hits of the rule that callers gave back.",
            series: returned,
        },
        RareFamily {
            metric: "weir.hits_return_denied",
            help: "Hits that callers would have given back, had the rule's give_back not denied it.",
            series: denied,
        },
    ]
}

/// The stats of envoyproxy/ratelimit. Counters whose names sanitize to the same one are added up.
pub(super) fn reference(stats: &Stats) -> BTreeMap<String, StatValue> {
    let mut values = BTreeMap::new();
    let mut count = |name: String, value: u64| match values.entry(name) {
        Entry::Vacant(vacant) => {
            vacant.insert(StatValue::Counter(value));
        }
        Entry::Occupied(mut occupied) => {
            if let StatValue::Counter(sum) = occupied.get_mut() {
                *sum = sum.saturating_add(value);
            }
        }
    };
    for rule in stats.rules() {
        // an address may go beyond a part
        let path = sanitize(&stats.shown(rule.name()).join("."));
        let counts = rule.get();
        for (name, value) in RuleCounts::NAMES.into_iter().zip(counts.values()) {
            count(format!("ratelimit.service.rate_limit.{path}.{name}"), value);
        }
        // most rules never have any
        let RareCounts { returned, .. } = rule.rare();
        if returned > 0 {
            count(format!("ratelimit.service.rate_limit.{path}.{NEGATIVE_HITS}"), returned);
        }
    }
    for (domain, descriptors) in stats.unknown_domains() {
        let domain = sanitize(&domain);
        count(format!("ratelimit.service.rate_limit.{domain}{DOMAIN_NOT_FOUND}"), descriptors);
    }
    for (name, counter) in [
        ("config_load_success", &stats.config_load_success),
        ("config_load_error", &stats.config_load_error),
        ("global_shadow_mode", &stats.global_shadow_mode),
        ("call.should_rate_limit.redis_error", &stats.redis_error),
        ("call.should_rate_limit.service_error", &stats.service_error),
    ] {
        count(format!("ratelimit.service.{name}"), counter.get());
    }
    for (method, stats) in stats.methods() {
        let timing = StatValue::Timing(Box::new(stats.response_time.get()));
        values.insert(response_time(method), timing);
        let total = StatValue::Counter(stats.total_requests());
        values.insert(format!("ratelimit_server.{method}.total_requests"), total);
    }
    values
}

pub(super) fn response_time(method: &str) -> String {
    format!("ratelimit_server.{method}.response_time")
}

fn own_metric(metric: &Metric) -> (String, StatValue) {
    let mut name = metric.name.to_owned();
    for (_, value) in &metric.labels {
        name.push('.');
        // a label is one step of the name, whatever its value
        name.push_str(&sanitize(value).replace('.', "_"));
    }
    let value = match &metric.kind {
        MetricKind::Counter => StatValue::Counter(metric.value),
        MetricKind::Gauge => StatValue::Gauge(metric.value),
        MetricKind::Timing(times) => StatValue::Timing(times.clone()),
    };
    (name, value)
}
