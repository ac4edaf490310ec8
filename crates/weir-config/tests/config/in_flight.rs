//! Limits on requests in flight: what is written, and what is wrong.

use serde_json::json;
use weir_config::{Loaded, RuleDescription, check_shared};
use weir_limit::{
    Capabilities, Coordination, InFlight, KeyHasher, Limit, Period, Rule, RuleSet, Scope, SharedCounts,
    SharedStore,
};

const MEMCACHED: SharedStore =
    SharedStore { name: "Memcached", system: "memcached", capabilities: Capabilities::SingleFixedWindow };

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
            "f.yaml:4:65: invalid age '8d'; write a whole number and s, m, h, d or w, from 1s to 7d",
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
    let written = "in_flight: 4, give_back: deny, sync_interval: 20ms";
    let warnings: Vec<String> = load(&text(written)).warnings.iter().map(ToString::to_string).collect();
    let unused = |column| format!("f.yaml:4:{column}: this has no effect with 'in_flight' alone");
    assert!(warnings.len() == 2 && warnings[0].contains(&unused(30)), "{warnings:?}");
    assert!(warnings[1].contains(&unused(47)), "{warnings:?}");
    let beside = "tiers: [{in_flight: 4}, {requests: 5, per: 1m}], give_back: deny, sync_interval: 20ms";
    assert!(load(&text(beside)).warnings.is_empty());
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
    let check = |written: &str, store, default| check_shared(load(&text(written)), store, default);
    for default in [Coordination::Auto, Coordination::Lease, Coordination::Split] {
        let loaded = check("in_flight: 4", SharedStore::REDIS, default).expect("the rules are valid");
        assert!(loaded.warnings.is_empty(), "{default:?}: {:?}", loaded.warnings);
        let errors = check("in_flight: 4", MEMCACHED, default).expect_err("it cannot").to_string();
        assert!(errors.contains("f.yaml:4:3: Memcached keeps no places"), "{errors}");
    }
    for (written, default) in
        [("in_flight: 4", Coordination::Local), ("in_flight: 4, coordination: local", Coordination::Auto)]
    {
        for store in [SharedStore::REDIS, MEMCACHED] {
            let loaded = check(written, store, default).expect("it is possible");
            let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
            assert!(
                warnings.len() == 1 && warnings[0].contains("each instance admits the whole limit"),
                "{warnings:?}"
            );
        }
    }
}

#[test]
fn the_store_of_all_instances_keeps_reserved_hits() {
    for (written, is_error) in [
        ("requests: 5, per: 1m, reserve: 1", true),
        ("requests: 5, per: 1m, reserve: auto", true),
        ("requests: 5, per: 1m, reserve: 0", false),
        ("requests: 5, per: 1m, reserve: 1, coordination: local", false),
    ] {
        let checked = check_shared(load(&text(written)), MEMCACHED, Coordination::Auto);
        let errors = checked.err().map(|errors| errors.to_string()).unwrap_or_default();
        let message = "f.yaml:4:3: Memcached keeps no places, and so no reserved hits; write 'reserve: 0', or use Redis";
        assert_eq!(errors.contains(message), is_error, "{written}: {errors}");
    }
}

#[test]
fn requests_reserve_what_can_pass() {
    let right = "'reserve' is the hits that a request reserves until its cost is reported, not";
    for (written, message) in [
        (
            "requests: 5, per: 1m, reserve: Auto",
            format!(
                "f.yaml:4:47: {right} 'Auto': write 'reserve: auto', a number up to 'requests', or 0 to count costs only"
            ),
        ),
        ("requests: 5, per: 1m, reserve: -1", format!("{right} '-1'")),
        ("requests: 5, per: 1m, reserve: [0]", format!("{right} 'a list'")),
        (
            "requests: 5, per: 1m, reserve: 6",
            "f.yaml:4:38: 'reserve' is above 'requests': nothing would pass".into(),
        ),
        (
            "tiers: [{requests: 5, per: 1m}, {requests: 30, per: 1h}], reserve: 6",
            "f.yaml:4:74: 'reserve' is above 'requests'".into(),
        ),
        ("unlimited: true, reserve: auto", "f.yaml:4:33: should not specify 'reserve' when unlimited".into()),
    ] {
        let errors = weir_config::parse("f.yaml", &text(written)).expect_err(written).to_string();
        assert!(errors.contains(&message), "{written}: {errors}");
    }
}

#[test]
fn reserved_hits_are_read_described_and_warned_of() {
    for (written, reserve, age, lines) in [
        (
            "requests: 5000, per: 1m, reserve: auto",
            json!("auto"),
            json!("2m"),
            "a request reserves what nine of ten requests cost when it begins (reserve: auto)",
        ),
        (
            "requests: 5000, per: 1m, reserve: 5000, give_up_after: 1h",
            json!(5_000),
            json!("1h"),
            "without an end, what it has reserved is given back after 1h",
        ),
        (
            "tiers: [{requests: 50, per: 1m}, {requests: 500, per: 1h}], reserve: 50, give_up_after: 30s",
            json!(50),
            json!("30s"),
            "a request reserves 50 hits when it begins (reserve: 50)",
        ),
        (
            "tiers: [{in_flight: 4, give_up_after: 5m}, {requests: 50, per: 1m}], reserve: 50",
            json!(50),
            json!("5m"),
            "without an end, what it has reserved is given back after 5m",
        ),
        ("requests: 5, per: 1m, reserve: 0", json!(0), json!(null), "more than one hit is a cost"),
        (
            "requests: 5, per: 1m, reserve: auto",
            json!("auto"),
            json!("2m"),
            "answers name a request (in_flight), and the entry in_flight with that name ends it",
        ),
    ] {
        let loaded = load(&text(written));
        let rules = RuleSet::new(&loaded.domains, KeyHasher::random());
        let description = RuleDescription {
            compiled: &rules.rules()[0],
            scope: Scope::Descriptor,
            shared: SharedCounts::default(),
        };
        let json = description.json();
        assert_eq!((&json["reserve"], &json["give_up_after"]), (&reserve, &age), "{written}");
        let described = description.lines().join("\n");
        assert!(described.contains(lines), "{written}: {described}");
    }
    for (written, warns) in [
        ("requests: 5000, per: 5s, reserve: auto", true),
        ("requests: 5000, per: 30s, reserve: auto", false),
        ("requests: 5000, per: 5s, reserve: auto, algorithm: token_bucket", false),
        ("requests: 5000, per: 5s, reserve: 50", false),
    ] {
        let warnings = load(&text(written)).warnings;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let expected = "f.yaml:4:41: requests that outlast a fixed window of 5s give nothing back to it, so that much of \
                        the limit is not used; write 'algorithm: token_bucket'";
        assert_eq!(warnings, if warns { vec![expected] } else { vec![] }, "{written}");
    }
}
