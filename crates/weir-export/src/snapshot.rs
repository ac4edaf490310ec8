//! A snapshot of the stats under dotted names, as envoyproxy/ratelimit sends them to statsd and prints them at
//! `/stats`.

use std::collections::{BTreeMap, BTreeSet};

use weir_observe::{
    PlaceTotals, ReserveStats,
    histogram::Distribution,
    metric::{Metric, MetricKind},
    rule_limit,
    rule_stats::{NEGATIVE_HITS, RareCounts, RuleCounts, ShadowCounts},
    sanitize::sanitize,
    stats::Stats,
};

const DOMAIN_NOT_FOUND: &str = ".domain_not_found";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatValue {
    Counter(u64),
    Gauge(u64),
    Timing(Box<Distribution>),
}

/// What the rules whose names are shown alike have counted together.
#[derive(Default)]
pub(super) struct RuleTotals {
    pub(super) counts: RuleCounts,
    pub(super) rare: RareCounts,
    shadow: ShadowCounts,
    places: Option<PlaceTotals>,
}

/// One of weir's own metrics, of the rule of that name as it is shown; the name is empty if it is no rule's.
pub(super) struct OwnMetric {
    pub(super) rule: Vec<String>,
    pub(super) metric: Metric,
}

pub fn snapshot(stats: &Stats) -> BTreeMap<String, StatValue> {
    let rules = rule_totals(stats);
    let mut values = reference(stats, &rules);
    for own in own_metrics(stats, &rules) {
        add(&mut values, own.dotted_name(), own.value());
    }
    values
}

pub(super) fn rule_totals(stats: &Stats) -> BTreeMap<Vec<String>, RuleTotals> {
    let mut totals: BTreeMap<Vec<String>, RuleTotals> = BTreeMap::new();
    for rule in stats.rules() {
        let total = totals.entry(stats.shown(rule.name())).or_default();
        total.counts = total.counts.plus(rule.get());
        total.rare = total.rare.plus(rule.rare());
        total.shadow = total.shadow.plus(rule.shadow());
        if let Some(places) = rule.known_places() {
            let more = places.totals();
            match &mut total.places {
                Some(places) => places.add(&more),
                None => total.places = Some(more),
            }
        }
    }
    totals
}

/// A shadow's counts are there if the rule has, or had, a limit in its shadow; rare ones once there are some.
pub(super) fn own_metrics(stats: &Stats, rules: &BTreeMap<Vec<String>, RuleTotals>) -> Vec<OwnMetric> {
    let mut own = Vec::new();
    let mut add = |rule: &[String], metric| own.push(OwnMetric { rule: rule.to_vec(), metric });
    let limits = stats.rule_limits();
    for (in_shadow, metric, help) in [
        (false, "weir.rule_limit", "Requests that a loaded rule admits in each period."),
        (
            true,
            "weir.shadow_limit",
            "Requests that a limit in the shadow of a loaded rule would admit in each period.",
        ),
    ] {
        for ((rule, per), (requests, _)) in rule_limit::series(&limits, in_shadow, |name| stats.shown(name)) {
            add(&rule, Metric::gauge(metric, help, requests.into()).label("per", per));
        }
    }
    let with_shadow: BTreeSet<Vec<String>> =
        limits.iter().filter(|limit| limit.in_shadow).map(|limit| stats.shown(&limit.name)).collect();
    for (rule, RuleTotals { counts, rare, shadow, places }) in rules {
        if with_shadow.contains(rule) || *shadow != ShadowCounts::default() {
            let names = ["weir.shadow_within_limit", "weir.shadow_over_limit"];
            for ((name, (_, help)), value) in names.into_iter().zip(ShadowCounts::NAMES).zip(shadow.values())
            {
                add(rule, Metric::counter(name, help, value));
            }
        }
        if rare.over_without_store > 0 {
            let with_store = counts.over_limit.saturating_sub(rare.over_without_store);
            for (reason, hits) in [("limit", with_store), ("store", rare.over_without_store)] {
                let help = "Hits past the limit, by what rejected them, of rules that rejected some without the store.";
                add(rule, Metric::counter("weir.over_limit_hits", help, hits).label("reason", reason));
            }
        }
        for (name, (_, help), hits) in [
            ("weir.hits_returned", RareCounts::NAMES[1], rare.returned),
            ("weir.hits_return_denied", RareCounts::NAMES[2], rare.return_denied),
            ("weir.hits_cost_lost", RareCounts::NAMES[3], rare.cost_lost),
            ("weir.addresses_invalid", RareCounts::NAMES[4], rare.addresses_invalid),
        ] {
            if hits > 0 {
                add(rule, Metric::counter(name, help, hits));
            }
        }
        let Some(PlaceTotals { counts, durations, reserve }) = places else { continue };
        let counts = PlaceTotals::NAMES.into_iter().zip(*counts).enumerate();
        let reserve =
            reserve.iter().flat_map(|counts| ReserveStats::NAMES.into_iter().zip(*counts).enumerate());
        // the first of each goes up and down
        for (i, ((name, help), count)) in counts.chain(reserve) {
            let metric = if i == 0 { Metric::gauge } else { Metric::counter };
            add(rule, metric(name, help, count));
        }
        let help = "How long requests ran that have ended.";
        add(rule, Metric::timing("weir.in_flight_duration", help, durations.clone()));
    }
    own.extend(stats.metrics().into_iter().map(|metric| OwnMetric { rule: Vec::new(), metric }));
    own
}

/// The stats of envoyproxy/ratelimit. Counters whose names sanitize to the same one are added up.
pub(super) fn reference(
    stats: &Stats,
    rules: &BTreeMap<Vec<String>, RuleTotals>,
) -> BTreeMap<String, StatValue> {
    let mut values = BTreeMap::new();
    let mut count = |name, value| add(&mut values, name, StatValue::Counter(value));
    for (rule, RuleTotals { counts, rare, .. }) in rules {
        // an address may go beyond a part
        let path = sanitize(&rule.join("."));
        for ((name, _), value) in RuleCounts::NAMES.iter().zip(counts.values()) {
            count(format!("ratelimit.service.rate_limit.{path}.{name}"), value);
        }
        // most rules never have any
        if rare.returned > 0 {
            count(format!("ratelimit.service.rate_limit.{path}.{NEGATIVE_HITS}"), rare.returned);
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

/// Adds up counters of one name: rules and labels of callers may have the same steps.
fn add(values: &mut BTreeMap<String, StatValue>, name: String, value: StatValue) {
    match (values.get_mut(&name), value) {
        (Some(StatValue::Counter(sum)), StatValue::Counter(more)) => *sum = sum.saturating_add(more),
        (_, value) => {
            values.insert(name, value);
        }
    }
}

// === impl OwnMetric ===

impl OwnMetric {
    fn dotted_name(&self) -> String {
        // a label is one step of the name, whatever its value
        let labels = self.metric.labels.iter().map(|(_, value)| sanitize(value).replace('.', "_"));
        let steps = self.rule.iter().cloned().chain(labels);
        steps.fold(self.metric.name.to_owned(), |name, step| name + "." + &step)
    }

    fn value(self) -> StatValue {
        match self.metric.kind {
            MetricKind::Counter => StatValue::Counter(self.metric.value),
            MetricKind::Gauge => StatValue::Gauge(self.metric.value),
            MetricKind::Timing(times) => StatValue::Timing(times),
        }
    }
}
