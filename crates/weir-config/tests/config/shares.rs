//! `share` in rule files.

use weir_config::parse;
use weir_limit::{
    OverLimitPolicy, Rule,
    share::{Anonymous, Borrow, Lend, Sharing},
};

fn text(share: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n- key: client\n  rate_limit:\n    requests: 4000\n    per: 10s\n    share: {share}\n"
    )
}

fn rule(text: &str) -> Rule {
    let parsed = parse("rules.yaml", text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    parsed.domains[0].nodes[0].rule.clone().expect("a rule")
}

fn errors(text: &str) -> String {
    parse("rules.yaml", text).expect_err("an error").to_string()
}

fn warnings(text: &str) -> String {
    let parsed = parse("rules.yaml", text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    parsed.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_key_has_its_meaning() {
    let read = rule(&text(
        "{borrow: max_min, lend: next_cycle, reserve: 20%, headroom: 5%, weights: {home-loan: 2, 7: 3}, \
         anonymous: allow, forget_after: 4, max_members: 50, min: 10, max: 1000}",
    ));
    let expected = Sharing {
        borrow: Borrow::MaxMin,
        lend: Lend::NextCycle,
        reserve: 20,
        headroom: 5,
        weights: [("home-loan".into(), 2), ("7".into(), 3)].into(),
        anonymous: Anonymous::Allow,
        forget_after: 4,
        max_members: 50,
        min: 10,
        max: Some(1_000),
    };
    assert_eq!(read.sharing.as_deref(), Some(&expected));
    assert_eq!(rule(&text("{}")).sharing.as_deref(), Some(&Sharing::default()));
    assert_eq!(rule("domain: d\ndescriptors:\n- {key: k, rate_limit: {requests: 1, per: 1s}}").sharing, None);
}

#[test]
fn the_shared_tier_comes_first_and_rejected_hits_do_not_count() {
    let tiers = rule(
        "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    tiers:\n    - {requests: 5, per: 1s}\n    \
         - {requests: 100, per: 10s, share: {}}\n",
    );
    assert_eq!(tiers.tiers().iter().map(|tier| tier.requests).collect::<Vec<_>>(), [100, 5]);
    assert!(tiers.sharing.is_some());
    let reference =
        "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 9, share: {}}}";
    assert_eq!(rule(reference).limit.over_limit_policy(), OverLimitPolicy::Ignore);
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    for (share, expected) in [
        ("{borrow: fair}", "rules.yaml:7:21: unknown borrow 'fair'; write by_demand, max_min or none"),
        ("{lend: later}", "unknown lend 'later'; write within_cycle or next_cycle"),
        ("{anonymous: maybe}", "unknown anonymous 'maybe'; write deny, allow or share"),
        ("{reserve: 10}", "rules.yaml:7:22: invalid 'reserve: 10'; write a whole percentage from 0% to 100%"),
        ("{headroom: 101%}", "invalid 'headroom: 101%'"),
        ("{weights: [a]}", "'weights' must be a mapping of members to weights, not a list"),
        ("{weights: {a: 0}}", "the weight of 'a' must be a whole number from 1 to 1048576"),
        ("{weights: {a: 1048576, b: 1}}", "the sum of all weights is 1048577, and may be 1048576 at most"),
        ("{max_members: 1}", "'max_members' must be a whole number from 2"),
        ("{max_members: 2000}", "'max_members' must be a whole number from 2 to 1024, not '2000'"),
        ("{forget_after: 0}", "'forget_after' must be a whole number from 1"),
        ("{min: 9, max: 3}", "'min' (9) exceeds 'max' (3)"),
        ("{borow: none}", "unknown key 'borow': did you mean 'borrow'?"),
        ("5", "'share' must be a mapping of borrow, lend"),
        ("{}\n    algorithm: sliding_window", "a shared limit is a fixed window"),
    ] {
        let found = errors(&text(share));
        assert!(found.contains(expected), "{share}\n{found}");
    }
    let two = "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    tiers:\n    - {requests: 5, per: 1s, share: {}}\n    \
               - {requests: 100, per: 10s, share: {}}\n";
    assert!(errors(two).contains("rules.yaml:7:33: only one tier can be shared"), "{}", errors(two));
    let unlimited = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unlimited: true, share: {}}}";
    assert!(errors(unlimited).contains("should not specify 'share' when unlimited"));
}

#[test]
fn what_has_no_effect_is_a_warning() {
    for (share, expected) in [
        ("{borrow: none, lend: next_cycle}", "'lend' has no effect with 'borrow: none'"),
        ("{weights: {a: 5000}}", "the sum of all weights is 5000"),
        ("{min: 5000}", "'min' (5000) exceeds the limit of all members (4000): nobody has it"),
        ("{max: 5000}", "'max' (5000) has no effect, since all members together have 4000"),
    ] {
        let found = warnings(&text(share));
        assert!(found.contains(expected), "{share}\n{found}");
    }
    for (value, is_one) in [
        ("value: a", true),
        ("values: [a, b*]", true),
        ("value: a*\n  share_threshold: true", true),
        ("value: a*", false),
        ("value: ''", false),
    ] {
        let text = text("{}").replace("- key: client\n", &format!("- key: client\n  {value}\n"));
        let found = warnings(&text);
        assert_eq!(found.contains("are one member"), is_one, "{value}: {found}");
    }
    for mode in ["local", "interval", "lease", "strict", "auto"] {
        assert_eq!(warnings(&text(&format!("{{}}\n    coordination: {mode}"))), "");
    }
}
