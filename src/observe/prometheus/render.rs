//! The stats in Prometheus' text format, under the names and labels that envoyproxy/ratelimit's mapping gives them.
//!
//! Two details are better than in the reference: every step of a rule's name has a label, however deep the rule is
//! (there, all steps below the second collapse into one series), and a dot in a step does not split it.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    mapped,
    mapper::Mapper,
    page::{Page, TimeUnit, labels},
};
use crate::observe::{
    metric::{Metric, MetricKind},
    process, rule_limit,
    rule_stats::{NEGATIVE_HITS, RuleCounts, ShadowCounts},
    sanitize::sanitize,
    snapshot::{RareFamily, RareSeries, rare_families, shadow_counts},
    stats::Stats,
};

/// The names and labels of the stats of envoyproxy/ratelimit.
#[derive(Clone, Debug)]
pub enum MetricNames {
    /// Those of envoyproxy/ratelimit's default mapping, with the unit of response times.
    Reference(TimeUnit),
    /// Those of `PROMETHEUS_MAPPER_YAML`.
    Mapped(Arc<Mapper>),
}

/// The help texts of a rule's stats, in the order of [`RuleCounts::NAMES`].
const RULE_HELP: [&str; 6] = [
    "Hits of the rule.",
    "Hits past the limit.",
    "Hits within the limit, but past the near-limit threshold.",
    "Hits past the limit that were rejected without a call to the store.",
    "Hits that the rule itself admitted, also of requests that another rule rejected.",
    "Hits past the limit that were admitted because the rule is in shadow mode.",
];

/// The help texts of what is counted in the shadow of a rule, in the order of [`ShadowCounts::named`].
const SHADOW_HELP: [&str; 2] = [
    "Hits of the rule that the limit in its shadow would have admitted.",
    "Hits of the rule that the limit in its shadow would have rejected.",
];

/// Renders all stats, and the resources that the process uses. `names` are for the stats of envoyproxy/ratelimit;
/// weir's own always keep theirs.
#[must_use]
pub fn render(stats: &Stats, names: &MetricNames) -> String {
    let mut page = Page::default();
    match names {
        MetricNames::Reference(unit) => {
            rules(&mut page, stats);
            service(&mut page, stats);
            methods(&mut page, stats, *unit);
        }
        MetricNames::Mapped(mapper) => mapped::write(&mut page, stats, mapper),
    }
    rule_limits(&mut page, stats);
    shadows(&mut page, stats);
    rare(&mut page, stats);
    own_metrics(&mut page, stats.metrics());
    for metric in process::metrics() {
        page.family(metric.name, metric.help, metric.kind);
        page.line(format_args!("{} {}", metric.name, metric.value));
    }
    page.text
}

fn rules(page: &mut Page, stats: &Stats) {
    // names that sanitize to the same one are one series: Prometheus rejects a scrape that repeats a series
    let mut rules: BTreeMap<Vec<String>, RuleCounts> = BTreeMap::new();
    let mut negative: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for rule in stats.rules() {
        let name = stats.shown(rule.name());
        let returned = rule.rare().returned;
        if returned > 0 {
            let sum = negative.entry(name.clone()).or_default();
            *sum = sum.saturating_add(returned);
        }
        let counts = rules.entry(name).or_default();
        *counts = counts.plus(rule.get());
    }
    let rules: Vec<(String, RuleCounts)> =
        rules.into_iter().map(|(name, counts)| (name_labels(&name), counts)).collect();
    for (i, (name, help)) in RuleCounts::NAMES.into_iter().zip(RULE_HELP).enumerate() {
        let name = format!("ratelimit_service_rate_limit_{name}");
        page.family(&name, help, "counter");
        for (labels, counts) in &rules {
            page.sample(&name, labels, counts.values()[i]);
        }
    }

    let name = format!("ratelimit_service_rate_limit_{NEGATIVE_HITS}");
    page.family(&name, "Hits of the rule that callers have given back.", "counter");
    for (rule, hits) in negative {
        page.sample(&name, &name_labels(&rule), hits);
    }

    let mut domains: BTreeMap<String, u64> = BTreeMap::new();
    for (domain, descriptors) in stats.unknown_domains() {
        *domains.entry(sanitize(&domain)).or_default() += descriptors;
    }
    let name = "ratelimit_service_rate_limit_domain_not_found";
    page.family(name, "Descriptors for a domain that has no rules.", "counter");
    for (domain, descriptors) in domains {
        page.sample(name, &labels([("domain", domain.as_str())]), descriptors);
    }
}

/// Writes the limits of the current rules, under the labels of their counters and the period.
fn rule_limits(page: &mut Page, stats: &Stats) {
    let limits = stats.rule_limits();
    let labelled = |in_shadow| -> Vec<_> {
        rule_limit::series(&limits, in_shadow, |name| stats.shown(name))
            .into_iter()
            .map(|((name, per), limit)| (format!("{},{}", name_labels(&name), labels([("per", per)])), limit))
            .collect()
    };
    let series = labelled(false);
    let name = "weir_rule_limit";
    page.family(name, "Requests that a loaded rule admits in each period.", "gauge");
    for (labels, (requests, _)) in &series {
        page.sample(name, labels, u64::from(*requests));
    }
    let name = "weir_rule_limit_period_seconds";
    page.family(name, "The period of a loaded rule's limit.", "gauge");
    for (labels, (_, period)) in &series {
        page.line(format_args!("{name}{{{labels}}} {}", period.as_secs_f64()));
    }
    let name = "weir_shadow_limit";
    page.family(
        name,
        "Requests that a limit in the shadow of a loaded rule would admit in each period.",
        "gauge",
    );
    for (labels, (requests, _)) in labelled(true) {
        page.sample(name, &labels, u64::from(requests));
    }
}

/// Writes what was counted in the shadow of rules, under the labels of their counters.
fn shadows(page: &mut Page, stats: &Stats) {
    let rules: Vec<(String, ShadowCounts)> =
        shadow_counts(stats).into_iter().map(|(name, counts)| (name_labels(&name), counts)).collect();
    let names = ShadowCounts::default().named().map(|(name, _)| name.replace('.', "_") + "_total");
    for (i, (name, help)) in names.into_iter().zip(SHADOW_HELP).enumerate() {
        page.family(&name, help, "counter");
        for (labels, counts) in &rules {
            page.sample(&name, labels, counts.named()[i].1);
        }
    }
}

/// Writes what few rules have counted, under the labels of their counters.
fn rare(page: &mut Page, stats: &Stats) {
    for RareFamily { metric, help, series } in rare_families(stats) {
        let name = metric.replace('.', "_") + "_total";
        page.family(&name, help, "counter");
        for RareSeries { rule, reason, value } in series {
            let mut labels_of_rule = name_labels(&rule);
            if let Some(reason) = reason {
                labels_of_rule = format!("{labels_of_rule},{}", labels([("reason", reason)]));
            }
            page.sample(&name, &labels_of_rule, value);
        }
    }
}

fn service(page: &mut Page, stats: &Stats) {
    let name = "ratelimit_service_should_rate_limit_error";
    page.family(name, "Requests that failed.", "counter");
    page.sample(name, &labels([("err_type", "redis_error")]), stats.redis_error.get());
    page.sample(name, &labels([("err_type", "service_error")]), stats.service_error.get());
    for (name, help, counter) in [
        (
            "ratelimit_service_config_load_success",
            "Configurations that were loaded.",
            &stats.config_load_success,
        ),
        (
            "ratelimit_service_config_load_error",
            "Configurations that were rejected.",
            &stats.config_load_error,
        ),
        (
            "ratelimit_service_global_shadow_mode",
            "Requests over the limit that were admitted because the whole service runs in shadow mode.",
            &stats.global_shadow_mode,
        ),
    ] {
        page.family(name, help, "counter");
        page.sample(name, "", counter.get());
    }
}

fn methods(page: &mut Page, stats: &Stats, unit: TimeUnit) {
    let methods = stats.methods();
    let name = "ratelimit_service_total_requests";
    page.family(name, "Calls that began.", "counter");
    for (method, stats) in &methods {
        page.sample(name, &labels([("grpc_method", *method)]), stats.total_requests());
    }
    let name = "ratelimit_service_response_time_seconds";
    page.family(name, "Response times of calls.", "histogram");
    for (method, stats) in &methods {
        let labels = labels([("grpc_method", *method)]);
        page.histogram(name, &labels, &stats.response_time.get(), unit.nanos());
    }
}

fn own_metrics(page: &mut Page, metrics: Vec<Metric>) {
    // all metrics of a name must stand together, whichever source they come from
    let mut families: BTreeMap<&'static str, Vec<Metric>> = BTreeMap::new();
    for metric in metrics {
        families.entry(metric.name).or_default().push(metric);
    }
    for (name, family) in families {
        let mut name = name.replace('.', "_");
        let kind = match &family[0].kind {
            MetricKind::Counter => {
                name.push_str("_total");
                "counter"
            }
            MetricKind::Gauge => "gauge",
            MetricKind::Timing(_) => {
                name.push_str("_seconds");
                "histogram"
            }
        };
        page.family(&name, family[0].help, kind);
        for metric in &family {
            let pairs = metric.labels.iter().map(|(name, value)| (*name, value.as_str()));
            match &metric.kind {
                MetricKind::Timing(times) => {
                    page.histogram(&name, &labels(pairs), times, TimeUnit::Seconds.nanos());
                }
                MetricKind::Counter | MetricKind::Gauge => page.sample(&name, &labels(pairs), metric.value),
            }
        }
    }
}

/// Returns `domain="…",key1="…",key2="…"` for a name that begins with the domain.
fn name_labels(name: &[String]) -> String {
    let keys = (1..name.len()).map(|i| format!("key{i}"));
    let keys: Vec<String> = std::iter::once("domain".to_owned()).chain(keys).collect();
    labels(keys.iter().map(String::as_str).zip(name.iter().map(String::as_str)))
}

// === impl MetricNames ===

impl Default for MetricNames {
    fn default() -> Self {
        Self::Reference(TimeUnit::default())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::{
        Source,
        histogram::{BOUNDS, Histogram},
    };

    #[test]
    fn names_that_sanitize_alike_are_one_series() {
        let stats = Stats::default();
        for value in ["a:b", "a_b"] {
            let name = ["d".into(), format!("k_{value}").into()];
            stats.rule(&name).add(RuleCounts { total_hits: 1, ..RuleCounts::default() });
        }
        stats.unknown_domain("x:y", 1);
        stats.unknown_domain("x|y", 1);
        let text = render(&stats, &MetricNames::default());
        let lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
        assert_eq!(
            lines("ratelimit_service_rate_limit_total_hits{"),
            [r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k_a_b"} 2"#]
        );
        assert_eq!(
            lines("ratelimit_service_rate_limit_domain_not_found{"),
            [r#"ratelimit_service_rate_limit_domain_not_found{domain="x_y"} 2"#]
        );
    }

    #[test]
    fn timings_of_a_source_are_a_histogram_in_seconds() {
        struct Redis(Histogram);
        impl Source for Redis {
            fn metrics(&self) -> Vec<Metric> {
                vec![
                    Metric::timing("weir.redis.round_trip", "Round trips.", self.0.get())
                        .label("redis", "main"),
                ]
            }
        }
        let redis = std::sync::Arc::new(Redis(Histogram::default()));
        redis.0.record(Duration::from_micros(400));
        redis.0.record(Duration::from_secs(11));
        let stats = Stats::default();
        stats.register(&redis);
        let text = render(&stats, &MetricNames::Reference(TimeUnit::Milliseconds));
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("weir_redis")).collect();
        let name = "weir_redis_round_trip_seconds";
        assert_eq!(lines[..2], [format!("# HELP {name} Round trips."), format!("# TYPE {name} histogram")]);
        for line in [
            "_bucket{redis=\"main\",le=\"0.00025\"} 0",
            "_bucket{redis=\"main\",le=\"0.0005\"} 1",
            "_bucket{redis=\"main\",le=\"10\"} 1",
            "_bucket{redis=\"main\",le=\"+Inf\"} 2",
            "_sum{redis=\"main\"} 11.0004",
            "_count{redis=\"main\"} 2",
        ] {
            assert!(lines.contains(&format!("{name}{line}").as_str()), "{line} in {text}");
        }
        assert_eq!(lines.len(), 2 + BOUNDS.len() + 3);
    }

    #[test]
    fn the_bounds_of_envoyproxy_ratelimit_are_there_in_both_units() {
        let stats = Stats::default();
        stats.method("ShouldRateLimit").record(1, Duration::from_micros(250));
        for (unit, sum) in [(TimeUnit::Seconds, "0.00025"), (TimeUnit::Milliseconds, "0.25")] {
            let text = render(&stats, &MetricNames::Reference(unit));
            for bound in
                ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf"]
            {
                assert!(text.contains(&format!(",le=\"{bound}\"}} ")), "{bound} in {unit:?}");
            }
            let line = format!("response_time_seconds_sum{{grpc_method=\"ShouldRateLimit\"}} {sum}\n");
            assert!(text.contains(&line), "{text}");
        }
    }
}
