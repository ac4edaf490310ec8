//! Tests the meaning of tiers and algorithms, and the errors of contradictory ones.

use weir_limit::{Algorithm, Bucket, Limit, OverLimitPolicy, Period, Refill, Tier};

use crate::messages::{assert_findings, rate_limit};

/// Returns the limit of a file with one rule.
#[track_caller]
fn limit(lines: &str) -> Limit {
    let loaded = weir_config::parse("f.yaml", &rate_limit(lines)).expect("a valid file");
    assert_eq!(loaded.warnings.len(), 0, "{:?}", loaded.warnings);
    let rule = loaded.domains[0].nodes[0].rule.clone();
    rule.expect("the descriptor has a limit").limit
}

/// Returns the only tier of such a limit.
#[track_caller]
fn one(lines: &str) -> Tier {
    match limit(lines) {
        Limit::Tiers { tiers, .. } => tiers[0].clone(),
        Limit::Unlimited => panic!("an unlimited rule"),
    }
}

fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
    Tier::new(requests, Period::from_secs(seconds), algorithm)
}

const fn bucket(burst: u32, refill: Refill, strict: bool) -> Algorithm {
    Algorithm::TokenBucket(Bucket { burst, refill, strict })
}

#[test]
fn only_a_limit_in_the_syntax_of_envoyproxy_ratelimit_counts_rejected_requests() {
    let over_limit_policy = |lines| match limit(lines) {
        Limit::Tiers { over_limit_policy, .. } => over_limit_policy,
        Limit::Unlimited => panic!("an unlimited rule"),
    };
    assert_eq!(over_limit_policy("unit: minute\nrequests_per_unit: 3"), OverLimitPolicy::Count);
    assert_eq!(
        over_limit_policy("unit: minute\nrequests_per_unit: 3\nalgorithm: fixed_window"),
        OverLimitPolicy::Count
    );
    assert_eq!(
        over_limit_policy("unit: minute\nrequests_per_unit: 3\nalgorithm: sliding_window"),
        OverLimitPolicy::Ignore
    );
    assert_eq!(over_limit_policy("requests: 3\nper: 1m"), OverLimitPolicy::Ignore);
    assert_eq!(
        over_limit_policy("tiers:\n  - { unit: minute, requests_per_unit: 3 }"),
        OverLimitPolicy::Ignore
    );
}

#[test]
fn each_algorithm_reads_its_parameters() {
    assert_eq!(one("requests: 3\nper: 1m\nalgorithm: sliding_window"), tier(3, 60, Algorithm::SlidingWindow));
    assert_eq!(
        one("requests: 3\nper: 1m\nalgorithm: token_bucket"),
        tier(3, 60, bucket(3, Refill::Continuous, false))
    );
    assert_eq!(
        one("requests: 1\nper: 1h\nalgorithm: token_bucket\nburst: 10\nrefill: step\nstrict: true"),
        tier(1, 3_600, bucket(10, Refill::Step, true))
    );
    assert_eq!(
        one("requests_per_unit: 2\nunit: second\nalgorithm: token_bucket\nburst: 5"),
        tier(2, 1, bucket(5, Refill::Continuous, false))
    );
}

#[test]
fn tiers_inherit_the_rules_algorithm_unless_they_name_one() {
    let lines = "algorithm: sliding_window\ntiers:\n  - { requests: 10, per: 1s }\n  \
                 - { requests: 100, per: 1m, algorithm: token_bucket, burst: 20 }\n  \
                 - { requests_per_unit: 300, unit: hour, unit_multiplier: 2 }";
    let expected = vec![
        tier(10, 1, Algorithm::SlidingWindow),
        tier(100, 60, bucket(20, Refill::Continuous, false)),
        tier(300, 7_200, Algorithm::SlidingWindow),
    ];
    assert_eq!(
        limit(lines),
        Limit::Tiers { tiers: expected.into(), over_limit_policy: OverLimitPolicy::Ignore }
    );
}

/// A window, and the bucket of its pace.
fn smooth(requests: u32, burst: u32) -> Limit {
    let window = tier(requests, 1, Algorithm::FixedWindow);
    let pace = tier(requests, 1, bucket(burst, Refill::Continuous, false));
    Limit::Tiers { tiers: [window, pace].into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore }
}

#[test]
fn smooth_windows_have_a_burst() {
    for (requests, more, burst) in [
        (1_000, "", 10),
        (10_001, "", 101),
        (100, "", 5),
        (3, "", 3),
        (1_000, "burst: 500", 500),
        // what flows in during two milliseconds
        (100_000, "burst: 1", 200),
    ] {
        let lines = format!("requests: {requests}\nper: 1s\nsmooth: true\n{more}");
        assert_eq!(limit(&lines), smooth(requests, burst), "{lines}");
        assert!(limit(&lines).is_smooth());
    }
    // also in the syntax of envoyproxy/ratelimit, whose rejected hits count otherwise
    let lines = "requests_per_unit: 1000\nunit: second\nsmooth: true";
    assert_eq!(limit(lines), smooth(1_000, 10));
    assert_eq!(one("requests: 5\nper: 1s\nsmooth: false"), tier(5, 1, Algorithm::FixedWindow));
}

/// A bucket of that rate admits no more than the limit in any interval.
#[test]
fn smooth_sliding_windows_are_buckets() {
    for (requests, more, burst) in [(1_000, "", 10), (100, "", 1), (100, "burst: 20", 20), (1, "", 1)] {
        let lines = format!("requests: {requests}\nper: 1s\nalgorithm: sliding_window\nsmooth: true\n{more}");
        let expected = tier(requests - burst + 1, 1, bucket(burst, Refill::Continuous, false));
        assert_eq!(one(&lines), expected, "{lines}");
    }
}

#[test]
fn contradictions_are_errors_that_name_the_fix() {
    for (lines, expected) in [
        (
            "requests: 1\nper: 1s\nalgorithm: leaky",
            "f.yaml:7:18: unknown algorithm 'leaky'; write fixed_window, sliding_window or token_bucket",
        ),
        (
            "requests: 1\nper: 1s\nburst: 5",
            "f.yaml:7:7: 'burst' requires 'algorithm: token_bucket' or 'smooth: true'; add that, or remove 'burst'",
        ),
        (
            "requests: 1\nper: 1s\nalgorithm: token_bucket\nsmooth: true",
            "f.yaml:8:7: a token bucket is smooth by itself; lower its 'burst', or remove 'smooth'",
        ),
        (
            "requests: 1\nper: 1s\nsmooth: true\nrefill: step",
            "f.yaml:8:7: 'refill' requires 'algorithm: token_bucket'; add that, or remove 'refill'",
        ),
        (
            "requests: 5\nper: 1s\nsmooth: true\nshare: {}",
            "f.yaml:8:7: a shared limit is a fixed window; remove 'smooth'",
        ),
        ("requests: 5\nper: 1s\nsmooth: 7", "f.yaml:7:15: "),
        (
            "smooth: true\ntiers:\n  - { requests: 1, per: 1s }",
            "f.yaml:5:7: 'smooth' cannot be combined with 'tiers'; move it into a tier",
        ),
        (
            "requests: 1\nper: 1s\nalgorithm: sliding_window\nstrict: true",
            "f.yaml:8:7: 'strict' requires 'algorithm: token_bucket'",
        ),
        (
            "requests: 1\nper: 1s\nalgorithm: token_bucket\nrefill: daily",
            "f.yaml:8:15: unknown refill 'daily'; write continuous or step",
        ),
        (
            "requests: 1\nper: 1s\nalgorithm: token_bucket\nburst: 0",
            "f.yaml:8:14: error loading config file: 'burst' must be a whole number from 1 to 4294967295",
        ),
        (
            "requests: 0\nper: 1s\nalgorithm: token_bucket\nburst: 5",
            "f.yaml:4:5: a token bucket with 0 requests never refills",
        ),
        (
            "tiers: []",
            "f.yaml:5:14: 'tiers' must not be empty; write at least one tier, such as '- { requests: 100, per: 1m }'",
        ),
        (
            "requests: 5\ntiers:\n  - { requests: 1, per: 1s }",
            "f.yaml:5:7: 'requests' cannot be combined with 'tiers'; move it into a tier",
        ),
        (
            "burst: 5\ntiers:\n  - { requests: 1, per: 1s, algorithm: token_bucket }",
            "f.yaml:5:7: 'burst' cannot be combined with 'tiers'; move it into a tier",
        ),
        (
            "tiers:\n  - { requests: 1, per: 1s }\n  - { requests: 2, unit: second }",
            "f.yaml:7:13: 'requests' cannot be combined with 'unit'",
        ),
        (
            "tiers:\n  - { requests: 1, per: 1s }\n  - { requests: 2, per: 1000ms }",
            "f.yaml:7:11: another tier of this rule has the same algorithm and period 1s; keep the stricter one",
        ),
        ("tiers:\n  - { requests: 1, per: 1s, name: x }", "f.yaml:6:35: config error, unknown key 'name'"),
        ("tiers:\n  - 5", "f.yaml:6:11: config error, yaml file contains list of type other than map: 5"),
        (
            "unlimited: true\ntiers:\n  - { requests: 1, per: 1s }",
            "f.yaml:6:7: should not specify 'tiers' when",
        ),
        ("unlimited: true\nreserve: 0", "f.yaml:6:7: should not specify 'reserve' when unlimited"),
        (
            "requests: 5\nper: 1s\nreserve: 0\nshare: {}",
            "f.yaml:7:7: 'reserve' cannot be combined with 'share'",
        ),
        (
            "requests: 5\nper: 1s\nreserve: 0\nsmooth: true",
            "f.yaml:7:7: 'reserve' cannot be combined with 'smooth'",
        ),
        (
            "requests: 5\nper: 1s\nreserve: 0\nshadow: {requests: 1, per: 1s}",
            "f.yaml:7:7: 'reserve' cannot be combined with 'shadow'; try the limit itself with 'shadow_mode: true'",
        ),
        (
            "requests: 5\nper: 1s\nreserve: 0\nalgorithm: token_bucket\nstrict: true",
            "f.yaml:7:7: 'reserve' cannot be combined with 'strict: true'",
        ),
        (
            "tiers:\n  - { requests: 1, per: 1s, reserve: 0 }",
            "f.yaml:6:35: config error, unknown key 'reserve': it belongs under 'rate_limit'",
        ),
        (
            "unlimited: true\nalgorithm: token_bucket",
            "f.yaml:6:7: should not specify 'algorithm' when unlimited",
        ),
    ] {
        assert_findings(&rate_limit(lines), &[expected]);
    }
}

#[test]
fn a_tier_without_effect_is_a_warning() {
    assert_findings(
        &rate_limit("tiers:\n  - { requests: 10, per: 1s }\n  - { requests: 600, per: 1m }"),
        &["?f.yaml:7:11: this tier never rejects a request: '10 requests per 1s' is always stricter"],
    );
    assert_findings(
        &rate_limit("requests: 10\nper: 1s\nalgorithm: token_bucket\nburst: 5\nrefill: step"),
        &["?f.yaml:8:14: a refill step of 10 tokens exceeds the burst of 5; the excess is lost"],
    );
}

#[test]
fn a_rule_sets_its_coordination() {
    use weir_limit::{Coordination, OnStoreFailure, RuleCoordination};
    let lines = "requests: 1\nper: 1s\ncoordination: interval\nsync_interval: 50ms\non_store_failure: deny";
    let loaded = weir_config::parse("f.yaml", &rate_limit(lines)).expect("a valid file");
    let rule = loaded.domains[0].nodes[0].rule.clone().expect("the descriptor has a limit");
    assert_eq!(
        rule.coordination,
        RuleCoordination {
            mode: Some(Coordination::Interval),
            sync_interval: Some(Period::from_millis(50)),
            on_store_failure: Some(OnStoreFailure::Deny),
            split_between: None,
        }
    );
    for (line, expected) in [
        (
            "coordination: gossip",
            "f.yaml:7:21: unknown coordination 'gossip'; write auto, local, interval, lease, strict or split",
        ),
        ("give_back: never", "f.yaml:7:18: unknown give_back 'never'; write allow or deny"),
        (
            "on_store_failure: panic",
            "f.yaml:7:25: unknown on_store_failure 'panic'; write local, allow or deny",
        ),
        ("sync_interval: often", "f.yaml:7:22: invalid interval 'often'; write a whole number"),
    ] {
        assert_findings(&rate_limit(&format!("requests: 1\nper: 1s\n{line}")), &[expected]);
    }
    assert_findings(
        &rate_limit("requests: 1\nper: 1s\ncoordination: lease\nsync_interval: 1s"),
        &["?f.yaml:8:7: 'sync_interval' has no effect with 'coordination: lease'"],
    );
}

#[test]
fn a_limit_has_at_most_64_tiers() {
    let tiers = |count: u32| {
        let tiers: Vec<_> = (1..=count).map(|i| format!("  - {{requests: {i}, per: {i}s}}")).collect();
        tiers.join("\n")
    };
    for start in ["tiers:\n", "requests: 1\nper: 365d\nshadow:\n  tiers:\n"] {
        let valid = rate_limit(&format!("{start}{}", tiers(64)));
        assert!(weir_config::parse("f.yaml", &valid).is_ok(), "{start}");
        let text = rate_limit(&format!("{start}{}", tiers(8_000)));
        let line = 1 + text.lines().position(|line| line.contains("{requests: 65,")).expect("the 65th tier");
        let errors = weir_config::parse("f.yaml", &text).expect_err("too many tiers").errors;
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].at.line as usize, line);
        assert_eq!(errors[0].message, "a limit has at most 64 tiers, and this one has 8000");
    }
}
