//! Shadow mode: limits that are reported but not enforced.

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
    wait::{self, HOUR},
};

fn by_user() -> Bootstrap {
    Bootstrap::limiting(json!([from_header("user", "x-user")]))
}

#[test]
fn a_rule_in_shadow_mode_lets_everything_pass() {
    let stack = Stack::start(
        "  - key: user
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: user
    value: mallory
    rate_limit: { unit: hour, requests_per_unit: 1 }
",
        &by_user(),
    );
    wait::away_from_the_end_of(HOUR);

    for _ in 0..4 {
        let response = stack.get_with("x-user", "alice");
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-ratelimit-limit"), Some("1, 1;w=3600"), "the limit is still reported");
        assert_eq!(response.header("x-ratelimit-remaining"), Some("0"));
    }
    assert_eq!(stack.get_with("x-user", "mallory").status, 200);
    assert_eq!(stack.get_with("x-user", "mallory").status, 429, "the other rules are kept");
}

#[test]
fn a_whole_service_in_shadow_mode_lets_everything_pass() {
    let stack = Stack::with_settings(
        "  - key: user
    rate_limit: { unit: hour, requests_per_unit: 2 }
",
        &[("SHADOW_MODE", "true")],
        &by_user(),
    );
    wait::away_from_the_end_of(HOUR);

    for remaining in ["1", "0", "0", "0"] {
        let response = stack.get_with("x-user", "alice");
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(response.header("x-envoy-ratelimited"), None);
    }
}
