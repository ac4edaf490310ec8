//! The stats in Prometheus' text format, under the names and labels that envoyproxy/ratelimit's mapping gives them.
//!
//! Two details are better than in the reference: every step of a rule's name has a label, however deep the rule is
//! (there, all steps below the second collapse into one series), and a dot in a step does not split it.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use super::{
    family::{Family, Kind, Labels, Series, TimeUnit},
    mapped, page,
};
use crate::{
    process,
    snapshot::{RareFamily, RareSeries, rare_families, shadow_counts},
};
use weir_observe::{
    mapper::Mapper,
    metric::{Metric, MetricKind},
    rule_limit,
    rule_stats::{NEGATIVE_HITS, RuleCounts, ShadowCounts},
    sanitize::sanitize,
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

/// The help texts of shadow counts, in the order of [`ShadowCounts::named`].
const SHADOW_HELP: [&str; 2] = [
    "Hits of the rule that the limit in its shadow would have admitted.",
    "Hits of the rule that the limit in its shadow would have rejected.",
];

type Show<'s> = dyn FnMut(Family) + 's;

/// Renders all stats and the process's resources. `names` are for the reference's stats; weir's own keep theirs.
#[must_use]
pub fn render(stats: &Stats, names: &MetricNames) -> String {
    let mut page = String::new();
    show_all(stats, names, &mut |family| page::write(&mut page, &family));
    page
}

/// Returns what [`render`] writes.
#[must_use]
pub fn families(stats: &Stats, names: &MetricNames) -> Vec<Family> {
    let mut families = Vec::new();
    show_all(stats, names, &mut |family| families.push(family));
    families
}

fn show_all(stats: &Stats, names: &MetricNames, show: &mut Show<'_>) {
    match names {
        MetricNames::Reference(unit) => {
            rules(show, stats);
            service(show, stats);
            methods(show, stats, *unit);
        }
        MetricNames::Mapped(mapper) => mapped::families(stats, mapper).into_iter().for_each(&mut *show),
    }
    rule_limits(show, stats);
    shadows(show, stats);
    rare(show, stats);
    own_metrics(show, stats.metrics());
    for metric in process::metrics() {
        let series = Series::double(&Arc::default(), metric.value);
        show(Family::new(metric.kind, metric.name, metric.help, [series]));
    }
}

fn rules(show: &mut Show<'_>, stats: &Stats) {
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
    let rules: Vec<(Arc<Labels>, RuleCounts)> =
        rules.into_iter().map(|(name, counts)| (labels(name, []), counts)).collect();
    for (i, (name, help)) in RuleCounts::NAMES.into_iter().zip(RULE_HELP).enumerate() {
        let name = format!("ratelimit_service_rate_limit_{name}");
        let series = rules.iter().map(|(labels, counts)| Series::int(labels, counts.values()[i]));
        show(Family::new(Kind::Counter, name, help, series));
    }

    let name = format!("ratelimit_service_rate_limit_{NEGATIVE_HITS}");
    let series = negative.into_iter().map(|(rule, hits)| Series::int(&labels(rule, []), hits));
    show(Family::new(Kind::Counter, name, "Hits of the rule that callers have given back.", series));

    let mut domains: BTreeMap<String, u64> = BTreeMap::new();
    for (domain, descriptors) in stats.unknown_domains() {
        *domains.entry(sanitize(&domain)).or_default() += descriptors;
    }
    let name = "ratelimit_service_rate_limit_domain_not_found";
    let series = domains.into_iter().map(|(domain, count)| Series::int(&labels(vec![domain], []), count));
    show(Family::new(Kind::Counter, name, "Descriptors for a domain that has no rules.", series));
}

fn rule_limits(show: &mut Show<'_>, stats: &Stats) {
    let limits = stats.rule_limits();
    let labelled = |in_shadow| -> Vec<_> {
        rule_limit::series(&limits, in_shadow, |name| stats.shown(name))
            .into_iter()
            .map(|((name, per), limit)| (labels(name, [("per", per)]), limit))
            .collect()
    };
    let of_rules = labelled(false);
    let series = of_rules.iter().map(|(labels, (requests, _))| Series::int(labels, u64::from(*requests)));
    let help = "Requests that a loaded rule admits in each period.";
    show(Family::new(Kind::Gauge, "weir_rule_limit", help, series));
    let series = of_rules.iter().map(|(labels, (_, period))| Series::double(labels, period.as_secs_f64()));
    let help = "The period of a loaded rule's limit.";
    show(Family::new(Kind::Gauge, "weir_rule_limit_period_seconds", help, series));
    let in_shadow = labelled(true).into_iter();
    let series = in_shadow.map(|(labels, (requests, _))| Series::int(&labels, u64::from(requests)));
    let help = "Requests that a limit in the shadow of a loaded rule would admit in each period.";
    show(Family::new(Kind::Gauge, "weir_shadow_limit", help, series));
}

fn shadows(show: &mut Show<'_>, stats: &Stats) {
    let rules: Vec<(Arc<Labels>, ShadowCounts)> =
        shadow_counts(stats).into_iter().map(|(name, counts)| (labels(name, []), counts)).collect();
    let names = ShadowCounts::default().named().map(|(name, _)| name.replace('.', "_") + "_total");
    for (i, (name, help)) in names.into_iter().zip(SHADOW_HELP).enumerate() {
        let series = rules.iter().map(|(labels, counts)| Series::int(labels, counts.named()[i].1));
        show(Family::new(Kind::Counter, name, help, series));
    }
}

fn rare(show: &mut Show<'_>, stats: &Stats) {
    for RareFamily { metric, help, series } in rare_families(stats) {
        let name = metric.replace('.', "_") + "_total";
        let series = series.into_iter().map(|RareSeries { rule, reason, value }| {
            Series::int(&labels(rule, reason.map(|reason| ("reason", reason))), value)
        });
        show(Family::new(Kind::Counter, name, help, series));
    }
}

fn service(show: &mut Show<'_>, stats: &Stats) {
    let errors = [("redis_error", &stats.redis_error), ("service_error", &stats.service_error)];
    let series = errors.map(|(kind, counter)| Series::int(&Labels::new([("err_type", kind)]), counter.get()));
    let name = "ratelimit_service_should_rate_limit_error";
    show(Family::new(Kind::Counter, name, "Requests that failed.", series));
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
        show(Family::new(Kind::Counter, name, help, [Series::int(&Arc::default(), counter.get())]));
    }
}

fn methods(show: &mut Show<'_>, stats: &Stats, unit: TimeUnit) {
    let methods = stats.methods();
    let labels = |method| Labels::new([("grpc_method", method)]);
    let series = methods.iter().map(|(method, stats)| Series::int(&labels(*method), stats.total_requests()));
    show(Family::new(Kind::Counter, "ratelimit_service_total_requests", "Calls that began.", series));
    let name = "ratelimit_service_response_time_seconds";
    let series = methods
        .iter()
        .map(|(method, stats)| Series::times(&labels(*method), &stats.response_time.get(), unit.nanos()));
    let mut family = Family::new(Kind::Histogram, name, "Response times of calls.", series);
    if unit == TimeUnit::Milliseconds {
        family.unit = "ms";
    }
    show(family);
}

fn own_metrics(show: &mut Show<'_>, metrics: Vec<Metric>) {
    // all metrics of a name must stand together, whichever source they come from
    let mut families: BTreeMap<&'static str, Vec<Metric>> = BTreeMap::new();
    for metric in metrics {
        families.entry(metric.name).or_default().push(metric);
    }
    for (name, family) in families {
        let (kind, suffix) = match &family[0].kind {
            MetricKind::Counter => (Kind::Counter, "_total"),
            MetricKind::Gauge => (Kind::Gauge, ""),
            MetricKind::Timing(_) => (Kind::Histogram, "_seconds"),
        };
        let (name, help) = (name.replace('.', "_") + suffix, family[0].help);
        let series = family.into_iter().map(|metric| {
            let labels = Labels::new(metric.labels);
            match &metric.kind {
                MetricKind::Timing(times) => Series::times(&labels, times, TimeUnit::Seconds.nanos()),
                MetricKind::Counter | MetricKind::Gauge => Series::int(&labels, metric.value),
            }
        });
        show(Family::new(kind, name, help, series));
    }
}

/// `name` begins with the domain: its labels are `domain`, `key1`, `key2` and so on.
fn labels<'a>(name: Vec<String>, further: impl IntoIterator<Item = (&'static str, &'a str)>) -> Arc<Labels> {
    let keys = (1..).map(|i| Cow::Owned(format!("key{i}")));
    let names = std::iter::once(Cow::Borrowed("domain")).chain(keys);
    let further = further.into_iter().map(|(name, value)| (name.into(), value.to_owned()));
    Labels::new(names.zip(name).chain(further))
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
    use weir_observe::{
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
