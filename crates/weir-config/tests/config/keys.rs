//! Tests the meaning of each key of a rule file.

use serde_json::json;
use weir_limit::{Limit, OverLimitPolicy, Period, RuleNode, Tier, Unit, Values};

/// Returns the descriptors of a file with these lines below `descriptors:`.
fn nodes(descriptors: &str) -> Vec<RuleNode> {
    let text = format!("domain: d\ndescriptors:\n{descriptors}\n");
    let mut loaded = weir_config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    loaded.domains.remove(0).nodes
}

fn limit(rate_limit: &str) -> Limit {
    let mut nodes = nodes(&format!("- {{key: k, rate_limit: {{{rate_limit}}}}}"));
    nodes.remove(0).rule.expect("a rule").limit
}

#[test]
fn a_merge_below_what_it_overwrites_is_a_warning() {
    let text = |limit: &str| {
        format!(
            "domain: d\ndescriptors:\n- {{key: j, rate_limit: &limit {{unit: day, requests_per_unit: 1000}}}}\n- key: k\n  \
             rate_limit: {limit}\n"
        )
    };
    let loaded = weir_config::parse("f.yaml", &text("{requests_per_unit: 5, <<: *limit}")).expect("rules");
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(
        warnings.iter().any(|warning| warning.contains("a '<<' below overwrites 'requests_per_unit'")),
        "{warnings:?}"
    );
    let loaded = weir_config::parse("f.yaml", &text("{<<: *limit, requests_per_unit: 5}")).expect("rules");
    assert!(!loaded.warnings.iter().any(|warning| warning.to_string().contains("overwrites")));
}

#[test]
fn the_syntax_of_envoyproxy_ratelimit_counts_rejected_requests() {
    assert_eq!(limit("unit: MiNuTe, requests_per_unit: 7"), Limit::fixed_window(7, Unit::Minute.period()));
    assert_eq!(
        limit("unit: week, requests_per_unit: 4294967295"),
        Limit::fixed_window(u32::MAX, Unit::Week.period())
    );
    assert_eq!(limit("unit: day"), Limit::fixed_window(0, Unit::Day.period()));
    assert_eq!(limit("unit: hour, requests_per_unit: 1_000"), Limit::fixed_window(1000, Unit::Hour.period()));
}

#[test]
fn a_unit_may_be_multiplied() {
    let twelve_hours = Period::from_secs(12 * 3_600);
    assert_eq!(
        limit("unit: hour, requests_per_unit: 1, unit_multiplier: 12"),
        Limit::fixed_window(1, twelve_hours)
    );
}

#[test]
fn weirs_syntax_does_not_count_rejected_requests() {
    let tier = Tier::fixed_window(100, Period::from_millis(500));
    assert_eq!(
        limit("requests: 100, per: 500ms"),
        Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore }
    );
}

#[test]
fn unlimited_admits_all_requests_only_if_true() {
    assert_eq!(limit("unlimited: yes"), Limit::Unlimited);
    assert_eq!(
        limit("unlimited: false, unit: day, requests_per_unit: 1"),
        Limit::fixed_window(1, Unit::Day.period())
    );
}

#[test]
fn names_and_modes_are_read() {
    let nodes = nodes(
        "- key: k
  shadow_mode: true
  quota_mode: True
  detailed_metric: on
  value_to_metric: yes
  rate_limit: {unit: day, requests_per_unit: 1, name: mine, replaces: [{name: a}, {name: b}]}
- key: plain
  rate_limit: {unit: day, requests_per_unit: 1, name: a}
- key: other
  rate_limit: {unit: day, requests_per_unit: 1, name: b}",
    );
    let rule = nodes[0].rule.as_ref().expect("a rule");
    assert!(rule.shadow_mode && rule.quota_mode && rule.detailed_metric && nodes[0].value_to_metric);
    assert_eq!(rule.name.as_deref(), Some("mine"));
    assert_eq!(rule.replaces, ["a", "b"].map(Box::<str>::from));
    let rule = nodes[1].rule.as_ref().expect("a rule");
    assert!(!rule.shadow_mode && !rule.quota_mode && !rule.detailed_metric && !nodes[1].value_to_metric);
}

#[test]
fn text_keeps_its_spelling() {
    for (written, value) in [
        ("007", "007"),
        ("true", "true"),
        ("1.50", "1.50"),
        ("0x1F", "0x1F"),
        ("'null'", "null"),
        ("\"a\\tb\"", "a\tb"),
        ("2026-11-21", "2026-11-21"),
        ("!!str 12", "12"),
    ] {
        let nodes = nodes(&format!("- {{key: k, value: {written}}}"));
        assert_eq!(nodes[0].values.to_string(), value, "{written}");
        let nodes = self::nodes(&format!("- {{key: k, values: [{written}]}}"));
        assert_eq!(nodes[0].values.to_string(), value, "{written}");
    }
}

#[test]
fn an_empty_value_matches_any_value() {
    for written in ["", "~", "null", "''"] {
        let nodes = nodes(&format!("- key: k\n  value: {written}"));
        assert_eq!(nodes[0].values, Values::Any, "{written}");
    }
}

#[test]
fn metadata_may_have_any_keys() {
    let nodes = nodes(
        "- key: k
  rate_limit: {unit: day, requests_per_unit: 1}
  metadata:
    text: x
    unit: not a key of ours
    1: number
    nested: {2: a, yes: b, 1.50: c, ~: d, list: [1, 2.5, true, ~, {e: f}], far: 1e21}",
    );
    let metadata = nodes[0].rule.as_ref().and_then(|rule| rule.metadata.as_deref()).expect("metadata");
    let expected = json!({
        "text": "x",
        "unit": "not a key of ours",
        "1": "number",
        "nested": {
            "2": "a", "yes": "b", "1.50": "c", "": "d", "list": [1, 2.5, true, null, {"e": "f"}], "far": 1e21,
        },
    });
    assert_eq!(serde_json::Value::Object(metadata.clone()), expected);
}

fn limits(descriptors: &str) -> Vec<Limit> {
    nodes(descriptors).into_iter().filter_map(|node| Some(node.rule?.limit)).collect()
}

fn daily(requests: u32) -> Limit {
    Limit::fixed_window(requests, Unit::Day.period())
}

#[test]
fn anchors_aliases_and_merges_are_resolved() {
    let limits = limits(
        "- key: a
  rate_limit: &limit {unit: day, requests_per_unit: 1, name: one}
- key: b
  rate_limit: *limit
- key: c
  rate_limit:
    <<: *limit
    requests_per_unit: 2
- key: d
  rate_limit:
    <<: [{unit: hour}, *limit]",
    );
    assert_eq!(limits, [daily(1), daily(1), daily(2), Limit::fixed_window(1, Unit::Hour.period())]);
}

#[test]
fn entries_apply_in_the_order_of_the_file() {
    let limits = limits(
        "- key: a
  rate_limit: &limit {unit: day, requests_per_unit: 1000}
- key: b
  rate_limit: {requests_per_unit: 5, <<: *limit}
- key: c
  rate_limit: {<<: *limit, <<: {requests_per_unit: 9}}
- key: d
  rate_limit: {<<: *limit, requests_per_unit: 5, <<: {unit: day}}",
    );
    assert_eq!(limits, [1_000, 1_000, 9, 5].map(daily));
}

#[test]
fn mappings_of_one_key_are_combined() {
    let nodes = nodes(
        "- &base
  key: a
  rate_limit: {unit: day, requests_per_unit: 10}
  metadata: {team: x, nested: {a: 1}, list: [1]}
- <<: *base
  key: b
  rate_limit: {requests_per_unit: 5}
  metadata: {tier: 1, nested: {b: 2}, list: [2]}
- <<: *base
  key: c
  rate_limit: {<<: {requests_per_unit: 6}}
  metadata: null",
    );
    let rules: Vec<_> = nodes.into_iter().filter_map(|node| node.rule).collect();
    assert_eq!(rules.iter().map(|rule| rule.limit.clone()).collect::<Vec<_>>(), [10, 5, 6].map(daily));
    let metadata = |i: usize| rules[i].metadata.as_deref().cloned().map(serde_json::Value::Object);
    assert_eq!(metadata(0), Some(json!({"team": "x", "nested": {"a": 1}, "list": [1]})));
    assert_eq!(metadata(1), Some(json!({"team": "x", "tier": 1, "nested": {"b": 2}, "list": [2]})));
    assert_eq!(metadata(2), None);
}

#[test]
fn the_last_of_duplicate_keys_counts() {
    let limits = limits(
        "- key: a
  rate_limit: {unit: hour, requests_per_unit: 5, requests_per_unit: 7, \"unit\": day}
- key: b
  rate_limit: {unit: day}
  rate_limit: {requests_per_unit: 8}",
    );
    assert_eq!(limits, [7, 8].map(daily));
}

#[test]
fn descriptors_and_rules_know_their_position() {
    let nodes =
        nodes("- key: a\n  descriptors:\n    - value: b\n      key: b\n      rate_limit: {unlimited: true}");
    assert_eq!(nodes[0].origin.to_string(), "f.yaml:3:3");
    let below = &nodes[0].children[0];
    assert_eq!(below.origin.to_string(), "f.yaml:5:7");
    assert_eq!(below.rule.as_ref().expect("a rule").origin.to_string(), "f.yaml:7:7");
}
