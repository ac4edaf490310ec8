//! The stats in Prometheus' text format, under the names and labels that the reference's mapping gives them.
//!
//! Two things are better than there: a rule's steps are labels of their own however deep it is (there, all below the
//! second collapse into one series), and a dot in a step does not cut it in two.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    time::Duration,
};

use super::{
    histogram::{BOUNDS, Distribution},
    metric::{Kind, Metric},
    name::sanitize,
    rule_stats::RuleCounts,
    stats::Stats,
};

/// The `Content-Type` of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What `ratelimit_service_response_time_seconds` counts, whatever its name says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    #[default]
    Seconds,
    /// Milliseconds: the reference's `PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS`.
    Milliseconds,
}

/// What the stats of a rule, in the order of [`RuleCounts::NAMES`], tell.
const RULE_HELP: [&str; 6] = [
    "Hits of the rule.",
    "Hits past the limit.",
    "Hits within the limit, but past the near-limit threshold.",
    "Hits past the limit that were answered without asking the store.",
    "Hits of requests that were admitted.",
    "Hits past the limit that were admitted because the rule is in shadow mode.",
];

/// Everything that is counted.
#[must_use]
pub fn render(stats: &Stats, unit: TimeUnit) -> String {
    let mut page = Page::default();
    rules(&mut page, stats);
    service(&mut page, stats);
    methods(&mut page, stats, unit);
    own(&mut page, stats.metrics());
    page.text
}

fn rules(page: &mut Page, stats: &Stats) {
    // names that are sanitized into the same one are one series: a scrape with a series twice is refused as a whole
    let mut rules: BTreeMap<Vec<String>, RuleCounts> = BTreeMap::new();
    for rule in stats.rules() {
        let steps = rule.path.steps().iter().map(|step| sanitize(step));
        let labels = std::iter::once(sanitize(rule.path.domain())).chain(steps).collect();
        rules.entry(labels).or_default().add(rule.get());
    }
    let rules: Vec<(String, RuleCounts)> =
        rules.into_iter().map(|(path, counts)| (path_labels(&path), counts)).collect();
    for (i, (name, help)) in RuleCounts::NAMES.into_iter().zip(RULE_HELP).enumerate() {
        let name = format!("ratelimit_service_rate_limit_{name}");
        page.family(&name, help, "counter");
        for (labels, counts) in &rules {
            page.sample(&name, labels, counts.values[i]);
        }
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

fn service(page: &mut Page, stats: &Stats) {
    let name = "ratelimit_service_should_rate_limit_error";
    page.family(name, "Requests that were not decided.", "counter");
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
            "Configurations that were refused.",
            &stats.config_load_error,
        ),
        (
            "ratelimit_service_global_shadow_mode",
            "Requests that were over, but let through because the whole service runs in shadow mode.",
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
    page.family(name, "Calls that were begun.", "counter");
    for (method, stats) in &methods {
        page.sample(name, &labels([("grpc_method", *method)]), stats.total_requests.get());
    }
    let name = "ratelimit_service_response_time_seconds";
    page.family(name, "How long calls took.", "histogram");
    for (method, stats) in &methods {
        let labels = labels([("grpc_method", *method)]);
        page.histogram(name, &labels, &stats.response_time.get(), unit);
    }
}

fn own(page: &mut Page, metrics: Vec<Metric>) {
    // one family is in one place, whoever contributes to it
    let mut families: BTreeMap<&'static str, Vec<Metric>> = BTreeMap::new();
    for metric in metrics {
        families.entry(metric.name).or_default().push(metric);
    }
    for (name, family) in families {
        let mut name = name.replace('.', "_");
        let kind = match &family[0].kind {
            Kind::Counter => {
                name.push_str("_total");
                "counter"
            }
            Kind::Gauge => "gauge",
            Kind::Timing(_) => {
                name.push_str("_seconds");
                "histogram"
            }
        };
        page.family(&name, family[0].help, kind);
        for metric in &family {
            let pairs = metric.labels.iter().map(|(name, value)| (*name, value.as_str()));
            match &metric.kind {
                Kind::Timing(held) => page.histogram(&name, &labels(pairs), held, TimeUnit::Seconds),
                Kind::Counter | Kind::Gauge => page.sample(&name, &labels(pairs), metric.value),
            }
        }
    }
}

/// `domain="…",key1="…",key2="…"`, for a path that begins with the domain.
fn path_labels(path: &[String]) -> String {
    let keys = (1..path.len()).map(|i| format!("key{i}"));
    let names: Vec<String> = std::iter::once("domain".to_owned()).chain(keys).collect();
    labels(names.iter().map(String::as_str).zip(path.iter().map(String::as_str)))
}

/// `name="value",…`, escaped.
fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => text.push_str(r"\\"),
                '"' => text.push_str(r#"\""#),
                '\n' => text.push_str(r"\n"),
                c => text.push(c),
            }
        }
        text.push('"');
    }
    text
}

// === impl TimeUnit ===

impl TimeUnit {
    #[expect(clippy::cast_precision_loss, reason = "exact for 104 days of nanoseconds")]
    fn of(self, period: Duration) -> f64 {
        match self {
            Self::Seconds => period.as_nanos() as f64 / 1e9,
            Self::Milliseconds => period.as_nanos() as f64 / 1e6,
        }
    }
}

/// The text as it grows.
#[derive(Default)]
struct Page {
    text: String,
}

// === impl Page ===

impl Page {
    fn family(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: u64) {
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{labels}}} {value}"));
        }
    }

    /// The buckets of `held` and what they come to, under `labels`, of which there is at least one.
    fn histogram(&mut self, name: &str, labels: &str, held: &Distribution, unit: TimeUnit) {
        let mut below = 0;
        for (bound, bucket) in BOUNDS.into_iter().zip(&held.buckets) {
            below += bucket.count;
            self.line(format_args!("{name}_bucket{{{labels},le=\"{}\"}} {below}", unit.of(bound)));
        }
        let count = held.count();
        self.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {count}"));
        self.line(format_args!("{name}_sum{{{labels}}} {}", unit.of(held.sum())));
        self.line(format_args!("{name}_count{{{labels}}} {count}"));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // a String takes whatever is written to it
        let _ = writeln!(self.text, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Entry, RulePath};

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(labels([("a", "x\"y\\z\n")]), r#"a="x\"y\\z\n""#);
    }

    #[test]
    fn a_series_is_there_once_even_if_two_names_come_out_the_same() {
        let stats = Stats::default();
        for value in ["a:b", "a_b"] {
            let path = RulePath::of_override("d", &[Entry { key: "k", value }]);
            stats.rule(&path).total_hits.add(1);
        }
        stats.unknown_domain("x:y", 1);
        stats.unknown_domain("x|y", 1);
        let text = render(&stats, TimeUnit::Seconds);
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
    fn times_of_a_source_are_a_histogram_in_seconds() {
        struct Redis(crate::observe::histogram::Histogram);
        impl crate::observe::Source for Redis {
            fn metrics(&self) -> Vec<Metric> {
                vec![
                    Metric::timing("weir.redis.round_trip", "Round trips.", self.0.get())
                        .label("redis", "main"),
                ]
            }
        }
        let redis = std::sync::Arc::new(Redis(crate::observe::histogram::Histogram::default()));
        redis.0.record(Duration::from_micros(400));
        redis.0.record(Duration::from_secs(11));
        let stats = Stats::default();
        stats.watch(&redis);
        let text = render(&stats, TimeUnit::Milliseconds);
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
    fn the_references_bounds_are_there_in_both_units() {
        let stats = Stats::default();
        stats.method("ShouldRateLimit").record(1, Duration::from_micros(250));
        for (unit, sum) in [(TimeUnit::Seconds, "0.00025"), (TimeUnit::Milliseconds, "0.25")] {
            let text = render(&stats, unit);
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
