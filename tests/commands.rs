//! The output of `weir check` and `weir explain`.

use std::fs;

use serde_json::json;
use tempfile::TempDir;
use weir::command::{self, CheckFormat, CheckOptions, Explained, ExplainedRequest};
use weir_config::{Options, load};
use weir_limit::{
    Coordination, Entry, KeyHasher, OnStoreFailure, Outcome, RuleSet, Scope, SharedCounts, SharedStore,
    Timestamp,
};
use weir_remotes::memcached;

const RULES: &str = "domain: shop
descriptors:
- key: tenant
  value: acme
- key: path
  value: /a/*
  descriptors:
  - key: method
    rate_limit: {requests: 5, per: 10s, name: five}
- key: path
  value: '*.pdf'
  rate_limit: {unlimited: true}
- key: hello
  rate_limit: {unit: minute, requests_per_unit: 3}
";

fn dir(text: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a.yaml"), text).expect("a file");
    dir
}

/// Returns whether a directory with this file is valid, and the output of `check` with DIR for the directory.
fn check(text: &str) -> (bool, String) {
    check_with(text, CheckOptions::default())
}

fn check_with(text: &str, options: CheckOptions) -> (bool, String) {
    let dir = dir(text);
    let mut out = Vec::new();
    let loaded = load(dir.path(), &Options::default());
    let ok = command::check(dir.path().display(), loaded, options, &mut out).expect("written");
    (ok, String::from_utf8(out).expect("text").replace(&dir.path().display().to_string(), "DIR"))
}

/// Returns the output of `explain` with [`RULES`], with DIR for the directory.
fn explain(domain: &str, entries: &[(&str, &str)]) -> String {
    explain_in(RULES, domain, entries)
}

/// Returns the output of `explain` with these rules, with DIR for the directory.
fn explain_in(rules: &str, domain: &str, entries: &[(&str, &str)]) -> String {
    explained(rules, domain, entries).1
}

fn explained(rules: &str, domain: &str, entries: &[(&str, &str)]) -> (Explained, String) {
    explained_with(rules, domain, &[entries], SharedCounts::default())
}

/// Explains a request of several descriptors.
fn explained_with(
    rules: &str,
    domain: &str,
    descriptors: &[&[(&str, &str)]],
    shared: SharedCounts,
) -> (Explained, String) {
    let dir = dir(rules);
    let owned = |entries: &&[(&str, &str)]| {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let descriptors: Vec<Vec<(String, String)>> = descriptors.iter().map(owned).collect();
    let mut out = Vec::new();
    let loaded = load(dir.path(), &Options::default());
    let request = ExplainedRequest {
        domain,
        descriptors: &descriptors,
        scope: Scope::default(),
        shared,
        at: None,
        now: Timestamp::default(),
    };
    let explained = command::explain(loaded, &request, &mut out).expect("written");
    let output = String::from_utf8(out).expect("text").replace(&dir.path().display().to_string(), "DIR");
    (explained, output)
}

#[test]
fn valid_files_are_counted() {
    assert_eq!(check(RULES), (true, "DIR: ok: 1 file, 1 domain, 3 rules, 0 warnings\n".to_owned()));
}

#[test]
fn warnings_are_printed_and_do_not_fail_the_check() {
    let (ok, output) = check("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day}\n");
    assert!(ok);
    assert!(output.starts_with("DIR/a.yaml:4:3: warning: 'requests_per_unit' is missing"), "{output}");
    assert!(output.ends_with("DIR: ok: 1 file, 1 domain, 1 rule, 1 warning\n"), "{output}");
}

/// One error and two warnings.
const MIXED: &str = "domain: d\nunit: day\ndescriptors:\n- value: v\n- key: 'k*'\n";

#[test]
fn denied_warnings_are_errors() {
    let deny = CheckOptions { deny_warnings: true, ..CheckOptions::default() };
    let (ok, output) = check_with("domain: d\nunit: day\n", deny);
    assert!(!ok);
    let lines: Vec<_> = output.lines().collect();
    assert!(
        lines[0].starts_with("DIR/a.yaml:2:1: error: 'unit' has no effect at the top of a file"),
        "{output}"
    );
    assert_eq!(lines[1..], ["DIR: not ok: 1 error, 0 warnings"]);
    let (ok, output) = check_with(MIXED, deny);
    let places: Vec<_> = output.lines().filter_map(|line| Some(line.split_once(": error: ")?.0)).collect();
    assert!(!ok);
    assert_eq!(places, ["DIR/a.yaml:2:1", "DIR/a.yaml:4:3", "DIR/a.yaml:5:8"], "{output}");
    assert!(check_with(RULES, deny).0);
}

#[test]
fn the_result_is_one_json_object() {
    let json = |text, deny_warnings| {
        let (ok, output) = check_with(text, CheckOptions { deny_warnings, format: CheckFormat::Json });
        let value: serde_json::Value = serde_json::from_str(&output).expect("one JSON value");
        assert_eq!((value["ok"].as_bool(), output.lines().count()), (Some(ok), 1), "{output}");
        value
    };
    let counted = json!({ "ok": true, "files": 1, "domains": 1, "rules": 3, "errors": [], "warnings": [] });
    assert_eq!(json(RULES, true), counted);
    let found = json(MIXED, false);
    assert_eq!(found["files"], serde_json::Value::Null);
    let error =
        json!({ "file": "DIR/a.yaml", "line": 4, "column": 3, "message": "descriptor has empty key" });
    assert_eq!(found["errors"], json!([error]));
    let lines: Vec<_> = found["warnings"].as_array().expect("warnings").iter().map(|w| &w["line"]).collect();
    assert_eq!(lines, [2, 5]);
    let denied = json("domain: d\nunit: day\n", true);
    assert_eq!((denied["errors"].as_array().map(Vec::len), &denied["warnings"]), (Some(1), &json!([])));
}

#[test]
fn each_error_is_printed_on_one_line() {
    let (ok, output) = check("domain: d\ndescriptors:\n- value: v\n- key: 'k*'\n");
    assert!(!ok);
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines[0], "DIR/a.yaml:3:3: error: descriptor has empty key");
    assert!(lines[1].starts_with("DIR/a.yaml:4:8: warning: '*' in a key"), "{output}");
    assert_eq!(lines[2..], ["DIR: not ok: 1 error, 1 warning"]);
}

#[test]
fn a_rule_is_explained_step_by_step() {
    assert_eq!(
        explain("shop", &[("path", "/a/b.pdf"), ("method", "GET")]),
        "domain shop
1. path=/a/b.pdf
     key path, value /a/b.pdf: not declared
   > key path, value /a/*: matches, DIR/a.yaml:5:3
2. method=GET
     key method, value GET: not declared
   > key method, any value: matches, DIR/a.yaml:8:5

rule shop.path_/a/*.method
  declared at DIR/a.yaml:9:5
  5 requests per 10s
  rejected requests do not count
  with Redis: lease (WEIR_COORDINATION: auto)
  while Redis does not answer: local
  now: local, since no shared store is set
  name: five
"
    );
}

#[test]
fn without_a_match_the_declared_keys_are_listed() {
    assert_eq!(
        explain("shop", &[("path", "/b")]),
        "domain shop
1. path=/b
     key path, value /b: not declared
     key path, value /a/*: does not match
     key path, value *.pdf: does not match
     key path, any value: not declared

no rule: nothing matches entry 1
declared there:
  path_*.pdf
  path_/a/*
  hello
  tenant_acme
"
    );
}

#[test]
fn every_other_outcome_is_explained() {
    for (domain, entries, end) in [
        ("shop", &[][..], "no rule: a descriptor without entries matches nothing"),
        ("market", &[("a", "b")], "no rule: unknown domain 'market'; the domains are shop"),
        ("shop", &[("path", "x.pdf")], "  unlimited"),
        (
            "shop",
            &[("tenant", "acme")],
            "no limit: DIR/a.yaml:3:3 has no rate_limit, so matching requests are admitted",
        ),
        (
            "shop",
            &[("path", "/a/b")],
            "no limit: the 1 entries end at DIR/a.yaml:5:3, which has no rate_limit; its nested rules need more entries",
        ),
        ("shop", &[("tenant", "acme"), ("b", "")], "no rule: the rules end at entry 1 of 2"),
        (
            "shop",
            &[("hello", "x"), ("b", "")],
            "no rule: the rules end at entry 1 of 2; the limit there applies to descriptors that end there",
        ),
    ] {
        let (explained, output) = explained(RULES, domain, entries);
        assert_eq!(output.lines().last(), Some(end), "{output}");
        let matches = ["  unlimited", "no limit: DIR/a.yaml:3:3"].iter().any(|start| end.starts_with(start));
        assert_eq!(explained == Explained::Match, matches, "{output}");
        assert_ne!(explained, Explained::InvalidRules);
    }
}

/// The Istio example's rules: each tenant, and each tenant at the checkout.
const NESTED: &str = "descriptors:
- key: tenant
  rate_limit: {requests: 5, per: 1m}
  descriptors:
  - key: path
    value: /checkout
    rate_limit: {unit: minute, requests_per_unit: 2}
";

const BOTH: [&[(&str, &str)]; 2] = [&[("tenant", "acme")], &[("tenant", "acme"), ("path", "/checkout")]];

#[test]
fn a_rejection_of_each_descriptor_is_explained() {
    let each = format!("domain: mesh\n{NESTED}");
    let (explained, output) = explained_with(&each, "mesh", &BOTH, SharedCounts::default());
    assert_eq!(explained, Explained::Match);
    let (_, end) = output.rsplit_once("\n\n").expect("a last paragraph");
    assert_eq!(
        end,
        "if descriptor 1 is over its limit: it does not count the request, and descriptor 2 (mesh.tenant.path_/checkout) \
         counts it if it admits it
if descriptor 2 is over its limit: it counts the request, and descriptor 1 (mesh.tenant) counts it if it admits it
(`all_or_nothing: true` beside `domain` lets such a request count nowhere)
"
    );
    let whole = format!("domain: mesh\nall_or_nothing: true\n{NESTED}");
    let (_, output) = explained_with(&whole, "mesh", &BOTH, SharedCounts::default());
    let (_, end) = output.rsplit_once("\n\n").expect("a last paragraph");
    assert_eq!(
        end,
        "if descriptor 1 is over its limit: nothing counts the request (all or nothing)
if descriptor 2 is over its limit: nothing counts the request (all or nothing)
"
    );
    // a descriptor that matches nothing is told by the exit code, whatever the others match
    let (explained, _) =
        explained_with(&each, "mesh", &[BOTH[0], &[("user", "bob")]], SharedCounts::default());
    assert_eq!(explained, Explained::NoMatch);
}

#[test]
fn the_limit_in_the_shadow_of_a_rule_is_explained() {
    let rules = "domain: d
descriptors:
- key: a
  rate_limit:
    requests: 100
    per: 1s
    coordination: lease
    shadow: { tiers: [{ requests: 50, per: 1s }, { requests: 900, per: 1h, algorithm: sliding_window }] }
";
    for (store, end) in [
        (SharedStore::REDIS, "    with Redis: lease\n"),
        (memcached::STORE, "    with Memcached: local, since it counts only single fixed windows\n"),
    ] {
        let shared = SharedCounts { store: Some(store), ..SharedCounts::default() };
        let (_, output) = explained_with(rules, "d", &[&[("a", "v")]], shared);
        let expected = format!(
            "
  in its shadow (weir_shadow_over_limit_total counts what it would reject):
    50 requests per 1s
    900 requests per 1h, sliding window
{end}"
        );
        assert!(output.ends_with(&expected), "{output}");
    }
}

#[test]
fn a_limit_on_requests_in_flight_is_explained() {
    let rules = "domain: d\ndescriptors:\n  - key: user\n    rate_limit: { in_flight: 4, give_up_after: 1h }\n  - key: tenant\n    \
                 rate_limit: { tiers: [{ in_flight: 1 }, { requests: 9, per: 1m }] }\n";
    let explained = |entries: &[(&str, &str)]| explain_in(rules, "d", entries);
    let alone = explained(&[("user", "acme")]);
    for line in
        ["  4 requests in flight, given up after 1h\n", "  rejected requests do not count\n", "now: local"]
    {
        assert!(alone.contains(line), "{line}: {alone}");
    }
    assert!(!alone.contains("unlimited"), "{alone}");
    let tiers = explained(&[("tenant", "acme")]);
    let both = "  1 request in flight, given up after 10m\n  9 requests per 1m\n";
    assert!(tiers.contains(both), "{tiers}");
    // without the store, each of five may admit less than one
    let of = |instances| SharedCounts {
        store: Some(SharedStore::REDIS),
        instances: Some(instances),
        ..SharedCounts::default()
    };
    let nobody = "  while Redis does not answer, nobody is admitted: 4 is below the 5 instances\n";
    for (instances, is_told) in [(4, false), (5, true)] {
        let (_, output) = explained_with(rules, "d", &[&[("user", "acme")]], of(instances));
        assert_eq!(output.contains(nobody), is_told, "{output}");
    }
    for (value, what) in [
        ("AYKmC8wAAAAAAAAB.AQR1c2VyBGFjbWU", "names a running request: "),
        ("x", "no request has such a name: nothing ends"),
    ] {
        for entries in [&[("in_flight", value)][..], &[("user", "acme"), ("in_flight", value)]] {
            let ends = explained(entries);
            assert!(ends.contains(what) && !ends.contains("rule d."), "{ends}");
        }
    }
    let check = explained(&[("user", "acme"), ("in_flight", "check")]);
    assert!(check.ends_with("  a check: counts and holds nothing\n"), "{check}");
}

#[test]
fn the_mode_that_applies_now_is_explained() {
    let rules = "domain: d
descriptors:
- key: a
  rate_limit: {requests: 100, per: 1s}
- key: s
  rate_limit: {requests: 100, per: 1s, coordination: strict, on_store_failure: deny}
- key: w
  rate_limit: {requests: 100, per: 1s, algorithm: sliding_window}
";
    let shared = |store, mode, instances| SharedCounts {
        store: Some(store),
        mode,
        instances,
        on_store_failure: OnStoreFailure::Allow,
        ..SharedCounts::default()
    };
    let (redis, memcached) = (SharedStore::REDIS, memcached::STORE);
    for (key, shared, end) in [
        (
            "a",
            shared(redis, Coordination::Auto, Some(3)),
            "  with Redis: interval with up to 2 instances, lease with more (WEIR_COORDINATION: auto)
  syncs every 100ms near the limit
  while Redis does not answer: allow
  now, with 3 instances: lease
",
        ),
        (
            "a",
            shared(memcached, Coordination::Auto, None),
            "  with Memcached: interval with up to 2 instances, strict with more (WEIR_COORDINATION: auto)
  syncs every 100ms near the limit
  while Memcached does not answer: allow
",
        ),
        (
            "a",
            shared(redis, Coordination::Local, Some(1)),
            "  with Redis: local (WEIR_COORDINATION)\n  now, with 1 instance: local\n",
        ),
        (
            "s",
            shared(redis, Coordination::Interval, None),
            "  with Redis: strict\n  while Redis does not answer: deny\n  now: strict\n",
        ),
        (
            "w",
            shared(memcached, Coordination::Auto, None),
            "  with Memcached: local, since it counts only single fixed windows\n  now: local\n",
        ),
    ] {
        let (_, output) = explained_with(rules, "d", &[&[(key, "x")]], shared);
        let (_, printed) = output.split_once("  rejected requests do not count\n").expect("its limit");
        assert_eq!(printed, end);
    }
}

#[test]
fn a_rule_that_a_more_specific_descriptor_hides_is_named() {
    let rules = "domain: d
descriptors:
- key: tenant
  value: gold
  rate_limit: {requests: 100, per: 1m}
- key: tenant
  rate_limit: {requests: 10, per: 1m}
  descriptors:
  - key: path
    descriptors:
    - key: method
      rate_limit: {requests: 5, per: 1m}
";
    let (ok, output) = check(rules);
    assert!(ok);
    let warning = "DIR/a.yaml:3:3: warning: this descriptor hides the rule at DIR/a.yaml:12:7 from tenant=gold: it is tried before \
                   'tenant' at DIR/a.yaml:6:3";
    assert!(output.starts_with(warning), "{output}");
    let entries = [("tenant", "gold"), ("path", "/a"), ("method", "GET")];
    let (explained, output) = explained(rules, "d", &entries);
    assert_eq!(explained, Explained::NoMatch);
    let passed_over = "passed over: rule d.tenant.path.method at DIR/a.yaml:12:7, because DIR/a.yaml:3:3 is tried first for \
                       tenant=gold; ";
    assert!(output.lines().any(|line| line.starts_with(passed_over)), "{output}");
    // what is declared below it is no longer hidden, also without a limit
    for nested in [
        "  descriptors: [{key: path, descriptors: [{key: method}]}]\n",
        "  descriptors: [{key: path, descriptors: [{key: method, rate_limit: {requests: 9, per: 1m}}]}]\n",
    ] {
        let mended = rules.replacen("- key: tenant\n  rate", &format!("{nested}- key: tenant\n  rate"), 1);
        let (ok, output) = check(&mended);
        assert!(ok && output.ends_with("0 warnings\n"), "{output}");
    }
    // an exception is meant to hide them
    for exception in ["", "  rate_limit: {unlimited: true}\n"] {
        let rules = rules.replacen("  rate_limit: {requests: 100, per: 1m}\n", exception, 1);
        let (ok, output) = check(&rules);
        assert!(ok && output.ends_with("0 warnings\n"), "{output}");
    }
}

#[test]
fn a_rule_that_another_one_replaces_is_not_shown_as_in_force() {
    let rules = "domain: d
descriptors:
- key: all
  rate_limit: {name: all, requests: 10, per: 1s}
- key: tenant
  rate_limit: {requests: 100, per: 1s, replaces: [{name: all}]}
";
    let (all, tenant): (&[_], &[_]) = (&[("all", "")], &[("tenant", "acme")]);
    let replaced = "  replaced by d.tenant of descriptor 2: this descriptor counts nothing\n";
    let shared = SharedCounts::default();
    let (explained, output) = explained_with(rules, "d", &[all, tenant], shared);
    assert_eq!(explained, Explained::Match);
    let (first, second) = output.split_once("\ndescriptor 2\n").expect("two descriptors");
    assert!(first.ends_with(replaced), "{output}");
    assert!(!second.contains(replaced), "{output}");
    for others in [&[all][..], &[all, all], &[tenant, tenant]] {
        let (_, output) = explained_with(rules, "d", others, shared);
        assert!(!output.contains("replaced"), "{output}");
    }
}

const LIMITS: &str = "domain: d
descriptors:
- key: tiers
  shadow_mode: true
  rate_limit:
    name: orders
    tiers:
    - {requests: 10, per: 1s, algorithm: sliding_window}
    - {requests: 1000, per: 90m}
    - {requests_per_unit: 5000, unit: day}
- key: bucket
  rate_limit: {requests: 5, per: 1s, algorithm: token_bucket, burst: 50}
- key: steps
  rate_limit: {requests: 1, per: 1h, algorithm: token_bucket, burst: 3, refill: step, strict: true}
- key: multiple
  rate_limit: {requests_per_unit: 7, unit: minute, unit_multiplier: 5}
";

#[test]
fn tiers_and_algorithms_are_explained() {
    for (key, rule) in [
        (
            "tiers",
            "rule d.tiers
  declared at DIR/a.yaml:5:3
  3 tiers, all of which a request must pass:
    10 requests per 1s, sliding window
    1000 requests per 90m
    5000 requests per 1d
  rejected requests do not count
  with Redis: lease (WEIR_COORDINATION: auto)
  while Redis does not answer: local
  now: local, since no shared store is set
  name: orders
  shadow_mode
",
        ),
        (
            "bucket",
            "rule d.bucket
  declared at DIR/a.yaml:12:3
  5 requests per 1s, token bucket with a burst of 50
  rejected requests do not count
  with Redis: interval with up to 1 instance, lease with more (WEIR_COORDINATION: auto)
  syncs every 100ms near the limit
  while Redis does not answer: local
  now: local, since no shared store is set
",
        ),
        (
            "steps",
            "rule d.steps
  declared at DIR/a.yaml:14:3
  1 request per 1h, token bucket with a burst of 3, refilled in steps, strict
  rejected requests do not count
  with Redis: lease (WEIR_COORDINATION: auto)
  while Redis does not answer: local
  now: local, since no shared store is set
",
        ),
        // in the syntax of envoyproxy/ratelimit, rejected requests count
        (
            "multiple",
            "rule d.multiple
  declared at DIR/a.yaml:16:3
  7 requests per 5m
  with Redis: lease (WEIR_COORDINATION: auto)
  while Redis does not answer: local
  now: local, since no shared store is set
",
        ),
    ] {
        let output = explain_in(LIMITS, "d", &[(key, "x")]);
        let (_, printed) = output.split_once("\n\n").expect("steps, and the rule");
        assert_eq!(printed, rule);
    }
}

#[test]
fn each_contradictory_limit_is_printed_on_one_line() {
    assert_eq!(check(LIMITS), (true, "DIR: ok: 1 file, 1 domain, 4 rules, 0 warnings\n".to_owned()));
    let (ok, output) = check(
        "domain: d
descriptors:
- key: a
  rate_limit:
    tiers:
    - {requests: 10, per: 1s}
    - {requests: 600, per: 1m}
- key: b
  rate_limit:
    requests: 5
    tiers:
    - {requests: 5, per: 1s, algorithm: leaky_bucket}
- key: c
  rate_limit: {requests: 5, per: 1y, burst: 7}
",
    );
    assert!(!ok);
    let lines = [
        "DIR/a.yaml:10:5: error: 'requests' cannot be combined with 'tiers'; move it into a tier",
        "DIR/a.yaml:12:41: error: unknown algorithm 'leaky_bucket'; write fixed_window, sliding_window or token_bucket",
        "DIR/a.yaml:14:34: error: invalid period '1y'; write a whole number and ms, s, m, h, d or w, from 1ms to 365d, such as 500ms, 10s, 1m, 1h, 7d or 1w, or calendar month",
        "DIR/a.yaml:7:7: warning: this tier never rejects a request: '10 requests per 1s' is always stricter",
        "DIR: not ok: 3 errors, 1 warning",
    ];
    assert_eq!(output.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn invalid_rules_are_not_explained() {
    let dir = dir("domain: d\nfoo: 1\n");
    let mut out = Vec::new();
    let loaded = load(dir.path(), &Options::default());
    let (scope, shared) = (Scope::default(), SharedCounts::default());
    let request = ExplainedRequest {
        domain: "d",
        descriptors: &[],
        scope,
        shared,
        at: None,
        now: Timestamp::default(),
    };
    let explained = command::explain(loaded, &request, &mut out).expect("written");
    assert_eq!(explained, Explained::InvalidRules);
    assert!(
        String::from_utf8(out).expect("text").contains("a.yaml:2:1: error: config error, unknown key 'foo'")
    );
}

#[test]
fn at_most_eight_alternatives_are_listed() {
    let text = format!(
        "domain: d\ndescriptors: [{}]",
        (0..50).map(|i| format!("{{key: k{i}}}")).collect::<Vec<_>>().join(", ")
    );
    let loaded = weir_config::parse("f.yaml", &text).expect("rules");
    let rules = RuleSet::new(&loaded.domains, KeyHasher::random());
    let explanation = rules.explain("d", &[Entry { key: "x", value: "" }]);
    assert!(matches!(explanation.outcome, Outcome::NoMatch));
    assert_eq!((explanation.steps[0].alternatives.len(), explanation.steps[0].alternatives_total), (8, 50));
}

#[test]
fn a_passed_over_rule_that_is_shorter_or_longer_than_the_request_is_named() {
    // the rule with `tenant=gold` is tried first, and leads nowhere
    let shorter = "domain: d
descriptors:
- key: tenant
  rate_limit: {requests: 10, per: 1m}
  descriptors:
  - key: method
    rate_limit: {requests: 5, per: 1m}
- key: tenant
  value: gold
  descriptors:
  - key: path
    value: /y
    rate_limit: {requests: 100, per: 1m}
";
    let whole = "domain: d
descriptors:
- key: tenant
  descriptors:
  - key: path
    rate_limit: {requests: 10, per: 1m}
- key: tenant
  value: gold
  rate_limit: {requests: 100, per: 1m}
";
    let longer = whole.replace(
        "    rate_limit: {requests: 10, per: 1m}\n",
        "    descriptors:\n    - key: method\n      rate_limit: {requests: 10, per: 1m}\n",
    );
    let gold = ("tenant", "gold");
    for (rules, entries, expected) in [
        (
            whole,
            &[gold, ("path", "/x")][..],
            "rule d.tenant.path at DIR/a.yaml:6:5, because DIR/a.yaml:7:3 is tried first for tenant=gold; weir does \
             not go back, so write the nested rules below that one, too",
        ),
        (
            &*longer,
            &[gold, ("path", "/x")],
            "rule d.tenant.path.method at DIR/a.yaml:8:7, because DIR/a.yaml:9:3 is tried first for tenant=gold; weir \
             does not go back, and the rule there is for more entries",
        ),
        (
            shorter,
            &[gold, ("path", "/x")],
            "rule d.tenant at DIR/a.yaml:4:3, because DIR/a.yaml:8:3 is tried first for tenant=gold; weir does not go \
             back, and the rule there is for descriptors that end at entry 1",
        ),
        // it needs no second entry, and what is tried first does
        (
            shorter,
            &[gold],
            "rule d.tenant at DIR/a.yaml:4:3, because DIR/a.yaml:8:3 is tried first for tenant=gold; weir does not go \
             back, so write the nested rules below that one, too",
        ),
    ] {
        let output = explain_in(rules, "d", entries);
        let line = format!("passed over: {expected}");
        assert!(output.lines().any(|found| found == line), "{line}\n{output}");
    }
    // what is on the way of the look-up is not passed over
    for (rules, entries) in
        [(whole, &[gold][..]), (whole, &[("tenant", "a")]), (shorter, &[("tenant", "a"), ("x", "y")])]
    {
        let output = explain_in(rules, "d", entries);
        assert!(!output.contains("passed over"), "{output}");
    }
}

#[test]
fn explain_suggests_what_a_misspelled_name_was_meant_to_be() {
    for (domain, entries, expected) in [
        ("shop", &[("helo", "world")][..], Some("did you mean `hello`?")),
        ("shop", &[("path", "/a/b"), ("metod", "GET")], Some("did you mean `method`?")),
        ("shpo", &[("hello", "world")], None),
        ("shopp", &[("hello", "world")], Some("did you mean `shop`?")),
        ("shop", &[("nothing", "world")], None),
        ("shop", &[("tenant", "acm")], None),
    ] {
        let output = explain(domain, entries);
        let found = output.lines().find(|line| line.starts_with("did you mean"));
        assert_eq!(found, expected, "{output}");
    }
}

#[test]
fn explain_lists_few_of_many_patterns() {
    let patterns = |n: usize| {
        let pattern =
            |i| format!("- key: path\n  value: 'p{i}-*'\n  rate_limit: {{requests: {}, per: 1s}}\n", i + 1);
        let last = "- key: path\n  rate_limit: {requests: 9, per: 2s}\n";
        format!("domain: d\ndescriptors:\n{}{last}", (0..n).map(pattern).collect::<String>())
    };
    for (n, value, listed, more) in [
        (10, "x", 10, None),
        (11, "x", 10, Some("     1 more pattern does not match")),
        (300, "x", 10, Some("     290 more patterns do not match")),
        (300, "p200-x", 10, Some("     190 more patterns do not match")),
    ] {
        let output = explain_in(&patterns(n), "d", &[("path", value)]);
        assert_eq!(output.matches(": does not match\n").count(), listed, "{output}");
        assert_eq!(output.lines().find(|line| line.contains(" more pattern")), more, "{output}");
    }
}

#[test]
fn an_unknown_key_in_the_place_of_a_unit_is_one_error() {
    for key in ["concurrency: 3", "requests_per_unit: 3, unti: minute"] {
        let (ok, output) = check(&format!("domain: d\ndescriptors:\n- key: a\n  rate_limit: {{{key}}}\n"));
        assert!(!ok && output.matches(": error: ").count() == 1, "{output}");
        assert!(!output.contains("unit ''"), "{output}");
    }
    let (ok, output) = check("domain: d\ndescriptors:\n- key: a\n  rate_limit: {requests_per_unit: 3}\n");
    assert!(!ok && output.contains("invalid rate limit unit ''"), "{output}");
}

#[test]
fn a_week_is_a_period() {
    let output = explain_in(
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {requests: 3, per: 1w}\n",
        "d",
        &[("a", "b")],
    );
    assert!(output.contains("3 requests per 7d"), "{output}");
}

#[test]
fn the_line_of_a_table_is_named() {
    let rules = "domain: shop\nplans: {free: {requests: 9, per: 1m}}\ndescriptors:\n- {key: tenant, limits_from: plans.csv, default: free}\n";
    let dir = dir(rules);
    fs::write(dir.path().join("plans.csv"), "value,limit\n\nacme,5 per 1s\n").expect("a file");
    let explain = |tenant: &str| {
        let descriptors = [vec![("tenant".to_owned(), tenant.to_owned())]];
        let loaded = load(dir.path(), &Options::default());
        let (scope, shared) = (Scope::default(), SharedCounts::default());
        let request = ExplainedRequest {
            domain: "shop",
            descriptors: &descriptors,
            scope,
            shared,
            at: None,
            now: Timestamp::default(),
        };
        let mut out = Vec::new();
        assert_eq!(command::explain(loaded, &request, &mut out).expect("written"), Explained::Match);
        String::from_utf8(out).expect("text").replace(&dir.path().display().to_string(), "DIR")
    };
    let found = explain("acme");
    let expected = "1. tenant=acme\n     key tenant, value acme: not declared\n   > key tenant, value acme of \
                    DIR/plans.csv:3: matches, DIR/a.yaml:4:3\n\nrule shop.tenant.limit_5_per_1s\n  declared at \
                    DIR/a.yaml:4:17\n  5 requests per 1s\n";
    assert!(found.contains(expected), "{found}");
    let missing = explain("other");
    let expected = "     key tenant, a value of DIR/plans.csv: it is not there\n   > key tenant, the default for values \
                    that DIR/plans.csv lacks: matches, DIR/a.yaml:4:3\n\nrule shop.tenant.plan_free\n";
    assert!(missing.contains(expected), "{missing}");
}
