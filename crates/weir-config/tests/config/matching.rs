//! Tests which rule a descriptor matches, in the order of envoyproxy/ratelimit.

use std::fmt::Write as _;

use weir_limit::{Entry, KeyHasher, Lookup, Outcome, RuleSet};

/// Returns the rules of a domain `d`; each `limit: NAME` is replaced by a limit of that name.
fn rules(descriptors: &str) -> RuleSet {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for line in descriptors.lines() {
        match line.split_once("limit: ") {
            Some((indent, name)) => {
                writeln!(text, "{indent}rate_limit: {{unit: day, requests_per_unit: 1, name: {name}}}")
            }
            None => writeln!(text, "{line}"),
        }
        .expect("a string");
    }
    let loaded = weir_config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    RuleSet::new(&loaded.domains, KeyHasher::random())
}

fn entries<'a>(pairs: &[(&'a str, &'a str)]) -> Vec<Entry<'a>> {
    pairs.iter().map(|(key, value)| Entry { key, value }).collect()
}

/// Returns the name of the matched rule, which an explanation must agree with.
fn found<'r>(rules: &'r RuleSet, pairs: &[(&'r str, &'r str)]) -> Option<&'r str> {
    let entries = entries(pairs);
    let found = match rules.find("d", &entries) {
        Lookup::Rule(compiled) => compiled.rule.name.as_deref(),
        Lookup::NoRule | Lookup::UnknownDomain => None,
    };
    let explained = match rules.explain("d", &entries).outcome {
        Outcome::Rule(compiled) => compiled.rule.name.as_deref(),
        _ => None,
    };
    assert_eq!(found, explained, "{pairs:?}");
    found
}

fn counter(rules: &RuleSet, pairs: &[(&str, &str)]) -> weir_limit::CounterKey {
    let entries = entries(pairs);
    match rules.find("d", &entries) {
        Lookup::Rule(compiled) => rules.counter_key(compiled, "d", &entries),
        other => panic!("{pairs:?}: {other:?}"),
    }
}

#[test]
fn exact_values_are_tried_first_then_wildcards_then_the_key_without_a_value() {
    let rules = rules(
        "
- key: k
  limit: any
- key: k
  value: ab*
  limit: first
- key: k
  value: a*
  limit: second
- key: k
  value: abc
  limit: exact
",
    );
    for (value, name) in
        [("abc", "exact"), ("abd", "first"), ("ab", "first"), ("ax", "second"), ("x", "any"), ("", "any")]
    {
        assert_eq!(found(&rules, &[("k", value)]), Some(name), "{value}");
    }
    assert_eq!(found(&rules, &[("other", "abc")]), None);
}

#[test]
fn a_wildcard_that_is_declared_first_wins_over_a_longer_one() {
    let rules = rules(
        "
- {key: k, value: a*}
- key: k
  value: ab*
  limit: longer
",
    );
    assert_eq!(found(&rules, &[("k", "abc")]), None);
}

#[test]
fn stars_match_any_text_anywhere_including_none() {
    let rules = rules(
        "
- key: path
  value: /api/*/x/*/y
  limit: two
- key: path
  value: '*.pdf'
  limit: pdf
",
    );
    for (value, name) in [
        ("/api/1/x/2/y", Some("two")),
        ("/api//x//y", Some("two")),
        ("/api/1/x/y", None),
        (".pdf", Some("pdf")),
        ("a.pdf", Some("pdf")),
        ("a.pdf.gz", None),
    ] {
        assert_eq!(found(&rules, &[("path", value)]), name, "{value}");
    }
}

#[test]
fn matching_does_not_backtrack() {
    let rules = rules(
        "
- key: a
  value: x
  descriptors:
  - key: b
    value: '1'
    limit: deep
- key: a
  descriptors:
  - key: b
    limit: general
",
    );
    assert_eq!(found(&rules, &[("a", "x"), ("b", "1")]), Some("deep"));
    assert_eq!(found(&rules, &[("a", "y"), ("b", "2")]), Some("general"));
    // the exact `a` has no match for this `b`, and the general one is not tried
    assert_eq!(found(&rules, &[("a", "x"), ("b", "2")]), None);
}

#[test]
fn a_descriptor_must_have_as_many_entries_as_the_rule_has_levels() {
    let rules = rules(
        "
- key: a
  limit: one
  descriptors:
  - key: b
    limit: two
",
    );
    assert_eq!(found(&rules, &[]), None);
    assert_eq!(found(&rules, &[("a", "")]), Some("one"));
    assert_eq!(found(&rules, &[("a", ""), ("b", "")]), Some("two"));
    assert_eq!(found(&rules, &[("a", ""), ("b", ""), ("c", "")]), None);
    assert_eq!(found(&rules, &[("a", ""), ("c", "")]), None);
    assert_eq!(found(&rules, &[("b", "")]), None);
}

#[test]
fn keys_and_values_do_not_collide_when_joined() {
    let rules = rules(
        "
- key: a
  value: b
  limit: pair
- key: a_b
  limit: key
",
    );
    assert_eq!(found(&rules, &[("a", "b")]), Some("pair"));
    assert_eq!(found(&rules, &[("a_b", "")]), Some("key"));
    assert_eq!(found(&rules, &[("a", "")]), None);
}

#[test]
fn a_star_in_a_key_is_literal() {
    let rules = rules(
        "
- key: a*
  limit: star
",
    );
    assert_eq!(found(&rules, &[("a*", "")]), Some("star"));
    assert_eq!(found(&rules, &[("ab", "")]), None);
}

#[test]
fn a_value_without_a_limit_is_exempt_from_the_keys_limit() {
    let rules = rules(
        "
- key: k
  limit: all
- key: k
  value: friend
",
    );
    assert_eq!(found(&rules, &[("k", "foe")]), Some("all"));
    assert_eq!(found(&rules, &[("k", "friend")]), None);
}

#[test]
fn each_value_has_its_own_counter_unless_the_pattern_is_shared() {
    let rules = rules(
        "
- key: own
  value: f*
  limit: own
- key: shared
  value: f*
  share_threshold: true
  descriptors:
  - key: own
    limit: below
",
    );
    assert_ne!(counter(&rules, &[("own", "f1")]), counter(&rules, &[("own", "f2")]));
    let below = |shared, own| counter(&rules, &[("shared", shared), ("own", own)]);
    assert_eq!(below("f1", "x"), below("f2", "x"));
    assert_ne!(below("f1", "x"), below("f1", "y"));
}

#[test]
fn several_values_share_one_counter() {
    let rules = rules(
        "
- key: method
  values: [GET, HEAD, 'P*']
  limit: some
",
    );
    let of = |value| counter(&rules, &[("method", value)]);
    assert_eq!(of("GET"), of("HEAD"));
    assert_eq!(of("GET"), of("PUT"));
    assert_eq!(found(&rules, &[("method", "DELETE")]), None);
}

#[test]
fn a_disabled_descriptor_is_ignored_with_its_children() {
    let rules = rules(
        "
- key: k
  limit: any
- key: k
  value: off
  enabled: false
  limit: 'never'
  descriptors:
  - key: below
    limit: 'nor this'
- key: k
  value: 'on'
  enabled: true
  limit: 'yes'
",
    );
    assert_eq!(found(&rules, &[("k", "off")]), Some("any"));
    assert_eq!(found(&rules, &[("k", "off"), ("below", "")]), None);
    assert_eq!(found(&rules, &[("k", "on")]), Some("yes"));
}

#[test]
fn an_unknown_domain_differs_from_a_domain_without_a_match() {
    let rules = rules("- key: k\n");
    assert!(matches!(rules.find("e", &entries(&[("k", "")])), Lookup::UnknownDomain));
    assert!(matches!(rules.find("d", &entries(&[("x", "")])), Lookup::NoRule));
}

/// Callers choose values, and must not use up the counter of another rule with one that looks like its pattern.
#[test]
fn a_value_that_looks_like_a_pattern_has_a_counter_of_its_own() {
    let rules = rules(
        "
- key: method
  values: [GET, HEAD]
  limit: reads
- key: path
  value: /v1/*
  share_threshold: true
  limit: v1
- key: method
  limit: any
- key: path
  limit: any
",
    );
    let of = |key, value| counter(&rules, &[(key, value)]);
    assert_ne!(of("method", "GET|HEAD"), of("method", "GET"));
    assert_ne!(of("path", "v1/*"), of("path", "/v1/a"));
}

/// Whether a rule below a pattern names the value or leaves it open, the value has the same counter, so that counts
/// survive the change.
#[test]
fn below_a_shared_level_a_value_has_one_counter_however_it_is_declared() {
    let hasher = KeyHasher::random();
    let key = |value: &str| {
        let text = format!(
            "domain: d\ndescriptors:\n- key: path\n  value: /v1/*\n  share_threshold: true\n  descriptors:\n  - key: method\n    {value}rate_limit: {{unit: day, requests_per_unit: 1}}\n"
        );
        let loaded = weir_config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        counter(&RuleSet::new(&loaded.domains, hasher), &[("path", "/v1/a"), ("method", "GET")])
    };
    assert_eq!(key(""), key("value: GET\n    "));
}
