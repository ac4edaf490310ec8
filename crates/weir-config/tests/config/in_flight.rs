//! Limits on requests in flight: what is written, and what is wrong.

use weir_config::{Loaded, check_shared};
use weir_limit::{Coordination, InFlight, Limit, Period, Rule, SharedStore};

fn text(rate_limit: &str) -> String {
    format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {{{rate_limit}}}\n")
}

fn load(text: &str) -> Loaded {
    weir_config::parse("f.yaml", text).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

fn rule(rate_limit: &str) -> Rule {
    let loaded = load(&text(rate_limit));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    loaded.domains[0].nodes[0].rule.clone().expect("a rule")
}

fn in_flight(most: u32, seconds: u64) -> InFlight {
    InFlight { most, give_up_after: Period::from_secs(seconds) }
}

#[test]
fn a_limit_stands_alone_or_is_a_tier() {
    for (written, most, seconds) in [
        ("in_flight: 4", 4, 600),
        ("in_flight: 0, give_up_after: 1s", 0, 1),
        ("in_flight: 100_000, give_up_after: 7d", 100_000, 604_800),
        ("tiers: [{in_flight: 3, give_up_after: 5m}]", 3, 300),
    ] {
        let rule = rule(written);
        assert_eq!(
            (rule.in_flight, &rule.limit),
            (Some(in_flight(most, seconds)), &Limit::Unlimited),
            "{written}"
        );
        assert!(!rule.is_unlimited());
    }
    for written in [
        "tiers: [{in_flight: 4}, {requests: 100, per: 1m}], reserve: 0",
        "tiers: [{requests: 100, per: 1m}, {in_flight: 4}], coordination: strict",
    ] {
        let rule = rule(written);
        assert_eq!((rule.in_flight, rule.tiers().len()), (Some(in_flight(4, 600)), 1), "{written}");
    }
}

#[test]
fn what_cannot_be_beside_a_limit_is_an_error_at_its_place() {
    for (written, message) in [
        (
            "in_flight: 4, per: 1m",
            "f.yaml:4:30: 'in_flight' has no window: write tiers: [{in_flight: 4}, {requests: 100, per: 1m}]",
        ),
        ("requests: 5, in_flight: 4", "f.yaml:4:16: 'in_flight' has no window"),
        ("in_flight: 4, algorithm: token_bucket", "f.yaml:4:30: 'in_flight' has no window"),
        ("tiers: [{in_flight: 4, burst: 1}]", "f.yaml:4:39: 'in_flight' has no window"),
        (
            "tiers: [{requests: 5, per: 1m}], in_flight: 4",
            "f.yaml:4:49: 'in_flight' cannot be combined with 'tiers'; move it into a tier",
        ),
        (
            "tiers: [{in_flight: 4}, {in_flight: 5}]",
            "f.yaml:4:41: only one tier can limit requests in flight",
        ),
        (
            "in_flight: 100001",
            "f.yaml:4:27: error loading config file: 'in_flight' must be a whole number from 0 to 100000",
        ),
        ("in_flight: many", "f.yaml:4:27: error loading config file: 'in_flight' must be a whole number"),
        (
            "in_flight: 4, give_up_after: 8d",
            "f.yaml:4:45: invalid age '8d'; write a whole number and s, m, h, d or w, from 1s to 7d",
        ),
        ("in_flight: 4, give_up_after: 500ms", "f.yaml:4:45: invalid age '500ms'"),
        (
            "requests: 5, per: 1m, give_up_after: 5m",
            "f.yaml:4:38: 'give_up_after' needs 'in_flight' or 'reserve'",
        ),
        (
            "tiers: [{requests: 5, per: 1m, give_up_after: 5m}]",
            "f.yaml:4:47: 'give_up_after' needs 'in_flight' or 'reserve'",
        ),
        ("unlimited: true, in_flight: 4", "f.yaml:4:33: should not specify 'in_flight' when unlimited"),
        ("in_flight: 4, share: {}", "f.yaml:4:30: 'in_flight' cannot be combined with 'share'"),
        (
            "tiers: [{in_flight: 4, share: {}}, {requests: 5, per: 1m}]",
            "f.yaml:4:39: 'in_flight' cannot be combined with 'share'",
        ),
        (
            "tiers: [{in_flight: 4}, {requests: 5, per: 1m, share: {}}]",
            "f.yaml:4:25: 'in_flight' cannot be combined with 'share'",
        ),
        (
            "tiers: [{in_flight: 4}, {requests: 5, per: 1m, smooth: true}]",
            "f.yaml:4:25: 'in_flight' cannot be combined with 'smooth'",
        ),
        (
            "tiers: [{in_flight: 4}, {requests: 5, per: 1m, algorithm: token_bucket, strict: true}]",
            "f.yaml:4:25: 'in_flight' cannot be combined with 'strict: true'",
        ),
        (
            "in_flight: 4, shadow: {requests: 5, per: 1m}",
            "f.yaml:4:16: 'in_flight' cannot be combined with 'shadow'",
        ),
        (
            "requests: 5, per: 1m, shadow: {tiers: [{in_flight: 4}, {requests: 9, per: 1m}]}",
            "f.yaml:4:56: 'in_flight' cannot be in a shadow",
        ),
        (
            "requests: 5, per: 1m, reserve: 2, give_up_after: 8d",
            "f.yaml:4:53: invalid age '8d'; write a whole number and s, m, h, d or w, from 1s to 7d",
        ),
        (
            "tiers: [{in_flight: 4}, {requests: 5, per: 1m}], reserve: 2, give_up_after: 1m",
            "f.yaml:4:77: 'give_up_after' belongs into the tier of 'in_flight', and 'reserve' follows it",
        ),
        (
            "in_flight: 4, reserve: 0",
            "f.yaml:4:30: 'reserve' is about costs, and 'in_flight' counts requests",
        ),
        (
            "in_flight: 4, coordination: lease",
            "f.yaml:4:44: places are kept by the store: write auto, strict or local",
        ),
        ("in_flight: 4, coordination: interval", "f.yaml:4:44: places are kept by the store"),
        ("in_flight: 4, coordination: split, instances: 2", "f.yaml:4:44: places are kept by the store"),
    ] {
        let errors = weir_config::parse("f.yaml", &text(written)).expect_err(written).to_string();
        assert!(errors.contains(message), "{written}: {errors}");
    }
    let warnings = load(&text("requests: 5, per: 1m, reserve: 0, give_up_after: 1m")).warnings;
    assert!(
        warnings[0].to_string().contains("'give_up_after' has no effect with 'reserve: 0'"),
        "{warnings:?}"
    );
}

#[test]
fn no_rule_can_have_the_key_of_names() {
    let rules =
        |rest: &str| format!("domain: d\ndescriptors:\n- key: user\n  rate_limit: {{in_flight: 4}}\n{rest}");
    let below = "  descriptors: [{key: in_flight, rate_limit: {requests: 1, per: 1m}}]\n";
    let first = "- key: in_flight\n  rate_limit: {requests: 1, per: 1m}\n";
    let itself = "- key: other\n  descriptors: [{key: in_flight, rate_limit: {in_flight: 1}}]\n";
    for (rest, message) in [
        (
            below,
            "f.yaml:5:17: the entry 'in_flight' names a request: no rule below one with 'in_flight' or 'reserve' can match it",
        ),
        (first, "f.yaml:5:3: the entry 'in_flight' names a request: no rule begins with it"),
        (itself, "f.yaml:6:17: the entry 'in_flight' names a request"),
    ] {
        let errors = weir_config::parse("f.yaml", &rules(rest)).expect_err(rest).errors;
        let [error] = &*errors else { panic!("{errors:?}") };
        assert!(error.to_string().starts_with(message), "{error}");
    }
    // elsewhere it is a key as others
    load(&rules("- key: other\n  descriptors: [{key: in_flight, rate_limit: {requests: 1, per: 1m}}]\n"));
    load("domain: d\ndescriptors: [{key: in_flight, rate_limit: {requests: 1, per: 1m}}]\n");
}

#[test]
fn the_store_of_all_instances_keeps_places() {
    let memcached = SharedStore {
        name: "Memcached",
        system: "memcached",
        capabilities: weir_limit::Capabilities::SingleFixedWindow,
    };
    let check = |written: &str, store, default| check_shared(load(&text(written)), store, default);
    for default in [Coordination::Auto, Coordination::Lease, Coordination::Split] {
        let loaded = check("in_flight: 4", SharedStore::REDIS, default).expect("the rules are valid");
        assert!(loaded.warnings.is_empty(), "{default:?}: {:?}", loaded.warnings);
        let errors = check("in_flight: 4", memcached, default).expect_err("it cannot").to_string();
        assert!(errors.contains("f.yaml:4:3: Memcached keeps no places"), "{errors}");
    }
    for (written, default) in
        [("in_flight: 4", Coordination::Local), ("in_flight: 4, coordination: local", Coordination::Auto)]
    {
        for store in [SharedStore::REDIS, memcached] {
            let loaded = check(written, store, default).expect("it is possible");
            let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
            assert!(
                warnings.len() == 1 && warnings[0].contains("each instance admits the whole limit"),
                "{warnings:?}"
            );
        }
    }
}
