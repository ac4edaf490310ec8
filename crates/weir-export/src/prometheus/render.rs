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
    snapshot::{OwnMetric, RuleTotals, own_metrics, rule_totals},
};
use weir_observe::{
    mapper::Mapper,
    metric::MetricKind,
    rule_limit,
    rule_stats::{NEGATIVE_HITS, RuleCounts},
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

type Show<'s> = dyn FnMut(Family) + 's;

/// Renders all stats and the process's resources. `names` are for the reference's stats; weir's own keep theirs.
pub fn render(stats: &Stats, names: &MetricNames) -> String {
    let mut page = String::new();
    show_all(stats, names, &mut |family| page::write(&mut page, &family));
    page
}

pub fn families(stats: &Stats, names: &MetricNames) -> Vec<Family> {
    let mut families = Vec::new();
    show_all(stats, names, &mut |family| families.push(family));
    families
}

fn show_all(stats: &Stats, names: &MetricNames, show: &mut Show<'_>) {
    let totals = rule_totals(stats);
    match names {
        MetricNames::Reference(unit) => {
            rules(show, stats, &totals);
            service(show, stats);
            methods(show, stats, *unit);
        }
        MetricNames::Mapped(mapper) => {
            mapped::families(stats, &totals, mapper).into_iter().for_each(&mut *show);
        }
    }
    own(show, own_metrics(stats, &totals));
    periods(show, stats);
    for metric in process::metrics() {
        let series = Series::double(&Arc::default(), metric.value);
        show(Family::new(metric.kind, metric.name, metric.help, [series]));
    }
}

fn rules(show: &mut Show<'_>, stats: &Stats, totals: &BTreeMap<Vec<String>, RuleTotals>) {
    let rules: Vec<(Arc<Labels>, &RuleTotals)> =
        totals.iter().map(|(name, totals)| (labels(name.clone(), []), totals)).collect();
    for (i, (name, help)) in RuleCounts::NAMES.iter().enumerate() {
        let name = format!("ratelimit_service_rate_limit_{name}");
        let value = |totals: &RuleTotals| totals.counts.values().nth(i).unwrap_or_default();
        let series = rules.iter().map(|(labels, totals)| Series::int(labels, value(totals)));
        show(Family::new(Kind::Counter, name, *help, series));
    }

    let name = format!("ratelimit_service_rate_limit_{NEGATIVE_HITS}");
    let negative = rules.iter().filter(|(_, totals)| totals.rare.returned > 0);
    let series = negative.map(|(labels, totals)| Series::int(labels, totals.rare.returned));
    show(Family::new(Kind::Counter, name, "Hits of the rule that callers have given back.", series));

    let mut domains: BTreeMap<String, u64> = BTreeMap::new();
    for (domain, descriptors) in stats.unknown_domains() {
        *domains.entry(sanitize(&domain)).or_default() += descriptors;
    }
    let name = "ratelimit_service_rate_limit_domain_not_found";
    let series = domains.into_iter().map(|(domain, count)| Series::int(&labels(vec![domain], []), count));
    show(Family::new(Kind::Counter, name, "Descriptors for a domain that has no rules.", series));
}

fn periods(show: &mut Show<'_>, stats: &Stats) {
    let limits = stats.rule_limits();
    let periods = rule_limit::series(&limits, false, |name| stats.shown(name)).into_iter();
    let series = periods.map(|((rule, per), (_, period))| {
        Series::double(&labels(rule, [("per", per.to_owned())]), period.as_secs_f64())
    });
    let help = "The period of a loaded rule's limit.";
    show(Family::new(Kind::Gauge, "weir_rule_limit_period_seconds", help, series));
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

fn own(show: &mut Show<'_>, metrics: Vec<OwnMetric>) {
    // all metrics of a name must stand together, whichever source they come from
    let mut families: BTreeMap<&'static str, Vec<OwnMetric>> = BTreeMap::new();
    for own in metrics {
        families.entry(own.metric.name).or_default().push(own);
    }
    for (name, family) in families {
        let (kind, suffix) = match &family[0].metric.kind {
            MetricKind::Counter => (Kind::Counter, "_total"),
            MetricKind::Gauge => (Kind::Gauge, ""),
            MetricKind::Timing(_) => (Kind::Histogram, "_seconds"),
        };
        let (name, help) = (name.replace('.', "_") + suffix, family[0].metric.help);
        let series = family.into_iter().map(|OwnMetric { rule, metric }| {
            let labels = labels(rule, metric.labels);
            match &metric.kind {
                MetricKind::Timing(times) => Series::times(&labels, times, TimeUnit::Seconds.nanos()),
                MetricKind::Counter | MetricKind::Gauge => Series::int(&labels, metric.value),
            }
        });
        show(Family::new(kind, name, help, series));
    }
}

/// The `name` of a rule begins with its domain: its labels are `domain`, `key1`, `key2` and so on.
fn labels(name: Vec<String>, further: impl IntoIterator<Item = (&'static str, String)>) -> Arc<Labels> {
    let keys = (1..).map(|i| Cow::Owned(format!("key{i}")));
    let names = std::iter::once(Cow::Borrowed("domain")).chain(keys);
    Labels::new(names.zip(name).chain(further.into_iter().map(|(name, value)| (name.into(), value))))
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
        Metric, Source,
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
