//! Envoy adds the headers of weir's response.

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
    wait::{self, HOUR},
};

const RULES: &str = "  - key: user
    rate_limit: { unit: hour, requests_per_unit: 2 }
";

fn by_user() -> Bootstrap {
    Bootstrap::limiting(json!([from_header("user", "x-user")]))
}

#[test]
fn weirs_own_headers_reach_the_client() {
    let settings = [("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_RESET_HEADER", "X-Back-In")];
    let stack = Stack::with_settings(RULES, &settings, &by_user());
    wait::away_from_the_end_of(HOUR);

    for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
        let before = wait::secs_left_of(HOUR);
        let response = stack.get_with("x-user", "alice");
        let after = wait::secs_left_of(HOUR);

        assert_eq!(response.status, status);
        assert_eq!(response.header("ratelimit-limit"), Some("2"));
        assert_eq!(response.header("ratelimit-remaining"), Some(remaining));
        assert_eq!(response.header("ratelimit-reset"), None, "it has another name");
        let reset: u64 = response.header("x-back-in").expect("a reset").parse().expect("a number");
        assert!((after..=before).contains(&reset), "{reset} is not between {after} and {before}");
    }
}

#[test]
fn without_the_setting_there_are_none() {
    let stack = Stack::start(RULES, &by_user());

    let response = stack.get_with("x-user", "alice");
    assert_eq!(response.header("x-ratelimit-limit"), Some("2, 2;w=3600"));
    assert_eq!(response.header("ratelimit-limit"), None);
}
