//! `PROMETHEUS_MAPPER_YAML`: the names that a mapper file gives the stats of envoyproxy/ratelimit.

use std::{fs, sync::Arc, time::Duration};
use weir_testing::gateway_mapper;

use weir_config::{ConfigErrors, read_mapper};
use weir_export::prometheus::{MetricNames, expression, render};
use weir_observe::{RuleCounts, Stats, mapper::Mapper};

/// Reads `text` as a file; returns the mapper and the warnings.
fn read(text: &str) -> Result<(Mapper, Vec<String>), ConfigErrors> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("conf.yaml");
    fs::write(&file, text).expect("a file");
    let (mapper, warnings) = read_mapper(&file, expression)?;
    let name = |text: String| text.replace(&format!("{}/", folder.path().display()), "");
    Ok((mapper, warnings.iter().map(|warning| name(warning.to_string())).collect()))
}

/// Stats with two hits of each rule, one call and one loaded configuration.
fn stats(rules: &[&[&str]]) -> Stats {
    stats_for(&Mapper::default(), rules)
}

/// The same, with the buckets that `mapper` needs.
fn stats_for(mapper: &Mapper, rules: &[&[&str]]) -> Stats {
    let stats = Stats::default();
    if let Some(refinement) = mapper.refinement() {
        stats.refine(refinement);
    }
    for rule in rules {
        let name: Vec<Box<str>> = rule.iter().map(|step| (*step).into()).collect();
        stats.rule(&name).add(RuleCounts { total_hits: 2, within_limit: 2, ..RuleCounts::default() });
    }
    stats.method("ShouldRateLimit").record(1, Duration::from_micros(250));
    stats.config_load_success.add(1);
    stats
}

/// Renders `stats` with the names of the file `text`. Returns the lines of samples, without those of weir and the
/// process.
fn page(stats: &Stats, text: &str) -> Vec<String> {
    let (mapper, warnings) = read(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(warnings, [""; 0]);
    let page = render(stats, &MetricNames::Mapped(Arc::new(mapper)));
    assert!(page.contains("\nweir_"), "weir's own metrics stay: {page}");
    let own = |line: &&str| !["#", "weir_", "process_"].iter().any(|start| line.starts_with(start));
    page.lines().filter(own).map(str::to_owned).collect()
}

#[test]
fn envoy_gateways_file_gives_its_names() {
    let stats = stats(&[&["d", "route"], &["d", "route", "rule-0"], &["d", "route", "rule-0", "deeper"]]);
    let lines = page(&stats, &gateway_mapper::envoy_gateway_mapper());
    let name = "ratelimit_service_rate_limit_total_hits";
    let hits: Vec<&String> = lines.iter().filter(|line| line.starts_with(name)).collect();
    assert_eq!(
        hits,
        [
            &format!("{name}{{domain=\"d\",key1=\"route\"}} 2"),
            &format!("{name}{{domain=\"d\",key1=\"route\",key2=\"rule-0\"}} 2"),
        ]
    );
    for line in [
        "ratelimit_service_config_load_success 1",
        "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 0",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 1",
        // without a scale, durations are in milliseconds there, too
        "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.1\"} 0",
        "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.25\"} 1",
        "ratelimit_service_response_time_seconds_sum{grpc_method=\"ShouldRateLimit\"} 0.25",
    ] {
        assert!(lines.iter().any(|has| has == line), "{line}: {lines:#?}");
    }
    // what no line of the file maps is dropped by its last one
    assert!(
        !lines.iter().any(|line| line.contains("global_shadow_mode") || line.contains("deeper")),
        "{lines:#?}"
    );
}

#[test]
fn a_mapping_scales_chooses_buckets_and_sums_what_it_makes_equal() {
    let stats = stats(&[&["a", "x"], &["b", "x"]]);
    let lines = page(
        &stats,
        "defaults: {match_type: regex, observer_type: histogram}\n\
         mappings:\n\
         - {match: '^ratelimit_server\\.(?P<method>\\w+)\\.response_time$', name: took, scale: 0.001,\n\
            labels: {m: '${method}'}, histogram_options: {buckets: [0.0001, 0.00025]}}\n\
         - {match: 'rate_limit\\..*\\.(total_hits)$', name: 'all_$1', scale: 10, help: \"Tens\\nof hits.\"}\n\
         - {match: '\\.total_requests$', match_metric_type: gauge, name: never}\n\
         - {match: '^ratelimit\\.', action: drop}\n",
    );
    assert_eq!(
        lines,
        [
            "all_total_hits 40",
            "ratelimit_server_ShouldRateLimit_total_requests 1",
            "took_bucket{m=\"ShouldRateLimit\",le=\"0.0001\"} 0",
            "took_bucket{m=\"ShouldRateLimit\",le=\"0.00025\"} 1",
            "took_bucket{m=\"ShouldRateLimit\",le=\"+Inf\"} 1",
            "took_sum{m=\"ShouldRateLimit\"} 0.00025",
            "took_count{m=\"ShouldRateLimit\"} 1",
        ]
    );
}

/// Returns the page's lines about the metric `name` with the names of the file `text`, after one call of 250 us and
/// `calls` more.
fn times(text: &str, calls: &[Duration], name: &str) -> Vec<String> {
    let (mapper, warnings) = read(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(warnings, [""; 0]);
    let stats = stats_for(&mapper, &[]);
    for call in calls {
        stats.method("ShouldRateLimit").record(1, *call);
    }
    let fixed = stats.method("ShouldRateLimit").response_time.get();
    assert_eq!(fixed.count(), calls.len() as u64 + 1, "other outputs keep the fixed buckets");
    let page = render(&stats, &MetricNames::Mapped(Arc::new(mapper)));
    page.lines().filter(|line| line.contains(name)).map(str::to_owned).collect()
}

#[test]
fn a_histogram_may_have_any_buckets() {
    let calls = [3_000, 5_000, 5_001, 9_000_000].map(Duration::from_micros);
    let text = "defaults: {observer_type: histogram, buckets: [0.001, 0.003, 7, .inf]}\n\
                mappings:\n\
                - {match: ratelimit_server.*.response_time, name: took, scale: 0.001,\n   \
                   histogram_options: {buckets: [0.005, 1, 10]}}\n";
    assert_eq!(
        times(text, &calls, "took"),
        [
            "# HELP took A stat of envoyproxy/ratelimit.",
            "# TYPE took histogram",
            "took_bucket{le=\"0.005\"} 3",
            "took_bucket{le=\"1\"} 4",
            "took_bucket{le=\"10\"} 5",
            "took_bucket{le=\"+Inf\"} 5",
            "took_sum 9.013251",
            "took_count 5",
        ]
    );
    // in milliseconds, with the buckets that mappings inherit
    let inherits = text.replace(", scale: 0.001,\n   histogram_options: {buckets: [0.005, 1, 10]}", "");
    let lines = times(&inherits, &calls, "took_bucket");
    assert_eq!(
        lines,
        ["0.001\"} 0", "0.003\"} 0", "7\"} 4", "+Inf\"} 5"].map(|end| format!("took_bucket{{le=\"{end}"))
    );
}

#[test]
fn a_summary_has_its_quantiles() {
    // with the first call, 1,000 calls of which 10 take a second
    let calls: Vec<Duration> =
        (0..999).map(|i| Duration::from_millis(if i < 10 { 1_000 } else { 4 })).collect();
    let summary = |more: &str| {
        format!(
            "mappings:\n- {{match: ratelimit_server.*.response_time, name: took, scale: 0.001, labels: {{m: $1}}{more}}}"
        )
    };
    let own = ", observer_type: summary, summary_options: {quantiles: [{quantile: 0.991, error: 0.001}, \
               {quantile: 0, error: 0}, {quantile: 0.9}], max_age: 1h, age_buckets: 4, buf_cap: 100}";
    let m = "m=\"ShouldRateLimit\"";
    assert_eq!(
        times(&summary(own), &calls, "took"),
        [
            "# HELP took A stat of envoyproxy/ratelimit.".to_owned(),
            "# TYPE took summary".to_owned(),
            format!("took{{{m},quantile=\"0\"}} 0.00025"),
            format!("took{{{m},quantile=\"0.9\"}} 0.004"),
            format!("took{{{m},quantile=\"0.991\"}} 1"),
            format!("took_sum{{{m}}} 13.95625"),
            format!("took_count{{{m}}} 1000"),
        ]
    );
    // those of statsd_exporter by default; 'quantiles' is an older place
    let quantiles = |more: &str| {
        let lines = times(&summary(more), &calls, "took{");
        let quantile = |line: &String| line.split('"').nth(3).map(str::to_owned);
        lines.iter().filter_map(quantile).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(quantiles(", timer_type: summary"), "0.5 0.9 0.99");
    assert_eq!(quantiles(", quantiles: [{quantile: 0.75, error: 0.01}]"), "0.75");
    let empty = times(&summary(", observer_type: summary").replace("ratelimit_server.*", "x.*"), &[], "took");
    assert!(empty.is_empty(), "{empty:?}");
}

#[test]
fn a_name_that_another_kind_of_metric_has_is_left_out() {
    let stats = stats(&[&["d", "k"]]);
    let lines = page(
        &stats,
        "mappings:\n\
         - {match: ratelimit_server.*.response_time, name: t}\n\
         - {match: ratelimit.service.config_load_success, name: t_count}\n\
         - {match: ratelimit.service.config_load_error, name: ok}\n\
         - {match: '.', match_type: regex, action: drop}\n",
    );
    assert!(lines.contains(&"t_count 1".to_owned()) && lines.contains(&"ok 0".to_owned()), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("t_count")).count(), 1, "{lines:#?}");
}

/// Prometheus rejects a page with a series that is there twice.
#[test]
fn a_series_is_there_once_whatever_the_order_of_labels_and_whether_they_are_empty() {
    let stats = stats(&[&["d", "x"], &["d", "y"], &["d", "z"]]);
    let lines = page(
        &stats,
        "mappings:\n\
         - {match: ratelimit.service.rate_limit.*.x.total_hits, name: hits, labels: {b: '1', a: $1}}\n\
         - {match: ratelimit.service.rate_limit.*.y.total_hits, name: hits, labels: {a: $1, b: '1'}}\n\
         - {match: '(q)?\\.z\\.total_hits', match_type: regex, name: hits, labels: {c: $1, b: '1', a: d}}\n\
         - {match: '.', match_type: regex, action: drop}\n",
    );
    assert_eq!(lines, ["hits{a=\"d\",b=\"1\"} 6"]);
}

#[test]
fn errors_have_their_places_and_say_what_would_be_right() {
    for (text, expected) in [
        (
            "mappings:\n- {match: a, name: weir_a}",
            "conf.yaml:2:20: invalid metric name 'weir_a': names that begin with weir_",
        ),
        ("mappings:\n- {match: a/b, name: a}", "conf.yaml:2:11: invalid match 'a/b': write steps of letters"),
        (
            "mappings:\n- {match: 'a(', match_type: regex, name: a}",
            "2:11: invalid regular expression 'a(': unclosed group",
        ),
        (
            "mappings:\n- {match: a, match_type: regexp, name: a}",
            "unknown match_type 'regexp'; write glob or regex; did you mean 'regex'?",
        ),
        ("mappings:\n- {match: a, action: remove, name: a}", "unknown action 'remove'; write map or drop"),
        (
            "mappings:\n- {match: a, match_metric_type: timer, name: a}",
            "unknown match_metric_type 'timer'; write counter, gauge or observer",
        ),
        ("mappings:\n- {name: a}", "conf.yaml:2:3: the mapping has no 'match'"),
        ("mappings:\n- {match: a}", "conf.yaml:2:3: the mapping has no 'name'"),
        ("mappings:\n- {match: a, name: a-b}", "invalid metric name 'a-b': write letters"),
        ("mappings:\n- {match: a, name: 1a}", "invalid metric name '1a'"),
        ("mappings:\n- match: a\n  name: a\n  labels:\n    a-b: x", "conf.yaml:5:5: invalid label 'a-b'"),
        ("mappings:\n- {match: a, name: a, labels: {le: x}}", "invalid label 'le'"),
        ("mappings:\n- {match: a, name: a, labels: [x]}", "'labels' must be a mapping of names and values"),
        ("mappings:\n- {match: a, name: a, labels: {yes: x, 'yes': y}}", "the label 'yes' is there twice"),
        ("mappings:\n- {match: a, name: a, lables: {}}", "unknown key 'lables': did you mean 'labels'?"),
        ("mappings:\n- {match: a, name: a, ttl: 1m}", "2:28: weir's series do not expire"),
        ("defaults: {ttl: 1m}", "1:17: weir's series do not expire"),
        (
            "mappings:\n- {match: a, name: a, timer_type: summary, buckets: [1]}",
            "2:44: a summary has no buckets; write 'observer_type: histogram', or remove this key",
        ),
        (
            "mappings:\n- {match: a, name: a, timer_type: histogram, quantiles: []}",
            "2:46: a histogram has no quantiles; write 'observer_type: summary'",
        ),
        (
            "mappings:\n- {match: a, name: a, buckets: [1], quantiles: [{quantile: 0.5}]}",
            "2:37: a histogram has no quantiles; write 'observer_type: summary', or remove this key",
        ),
        (
            "mappings:\n- {match: a, name: a, buckets: [0.3, 0.3]}",
            "2:38: 'buckets' must ascend, but 0.3 follows 0.3",
        ),
        (
            "mappings:\n- {match: a, name: a, buckets: [.inf, 1]}",
            "'buckets' must be a number above 0, not '.inf'",
        ),
        (
            "mappings:\n- {match: a, name: a, quantiles: [{quantile: 99}]}",
            "'quantile' must be a number from 0 to 1, not '99'",
        ),
        ("mappings:\n- {match: a, name: a, quantiles: [{error: 0.1}]}", "2:35: the quantile is missing"),
        (
            "mappings:\n- {match: a, name: a, quantiles: [0.5]}",
            "a quantile must be a mapping of quantile, error",
        ),
        (
            "mappings:\n- {match: a, name: a, summary_options: {max_age: 5}}",
            "invalid max_age: write a whole number and ms, s, m, h, d or w",
        ),
        (
            "mappings:\n- {match: a, name: a, timer_type: summary, labels: {quantile: x}}",
            "invalid label 'quantile': it is Prometheus' in a summary",
        ),
        (
            "mappings:\n- {match: a, name: a, scale: 0.001, buckets: [x]}",
            "'buckets' must be a number above 0, not the text 'x'",
        ),
        ("mappings:\n- {match: a, name: a, scale: -1}", "'scale' must be a number above 0, not '-1'"),
        ("defaults: {histogram_options: {native_histogram_max_buckets: 3}}", "weir has no native histograms"),
        ("mapping: []", "unknown key 'mapping': did you mean 'mappings'?"),
        ("- a", "a mapper file must be a mapping of defaults, mappings"),
        ("mappings: [", "error loading mapper file: "),
    ] {
        let errors = read(text).expect_err(text).to_string();
        assert!(errors.contains(expected), "{text}:\n{errors}");
    }
    let missing =
        read_mapper("nowhere/conf.yaml".as_ref(), expression).expect_err("there is no file").to_string();
    assert!(missing.starts_with("nowhere/conf.yaml: error loading file: "), "{missing}");
    let many = "1,".repeat(201);
    let errors = read(&format!("defaults: {{buckets: [{many}]}}")).expect_err("too many").to_string();
    assert!(errors.contains("'buckets' has more than 200 entries"), "{errors}");
    let many = "- {match: a, match_type: regex, name: a}\n".repeat(1_001);
    let errors = read(&format!("mappings:\n{many}")).expect_err("too many").to_string();
    assert!(errors.contains(":1002:3: more than 1000 mappings are regular expressions"), "{errors}");
}

#[test]
fn all_errors_are_reported_and_missing_groups_are_warned_about() {
    let errors = read("mappings:\n- {match: a, ttl: 1s}\n- {match: 'a(', match_type: regex, name: a}")
        .expect_err("errors");
    assert_eq!(errors.errors.len(), 3, "{errors}");
    let (_, warnings) = read("mappings:\n- {match: a, name: a, name: b}").expect("a mapper");
    assert_eq!(warnings, ["conf.yaml:2:23: duplicate key 'name'; the first is at 2:14; the last one counts"]);
    let text = "mappings:\n- {match: a.*, name: a, labels: {l: $1_x, m: $2}}\n";
    let (mapper, warnings) = read(text).expect("a mapper");
    assert_eq!(
        warnings,
        [
            "conf.yaml:2:37: the match has no group '1_x', so '$1_x' is empty; did you mean '${1}_x'?",
            "conf.yaml:2:46: the match has no group '2', so '$2' is empty",
        ]
    );
    let page = render(&Stats::default(), &MetricNames::Mapped(Arc::new(mapper)));
    assert!(page.contains("\nratelimit_service_config_load_success 0\n"), "{page}");
}
