//! Limits that envoyproxy/ratelimit does not have: tiers, token buckets, and their headers.

use std::time::Instant;

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
    http::HttpResponse,
    wait::{self, DAY, HOUR},
};

fn by_user() -> Bootstrap {
    Bootstrap::limiting(json!([from_header("user", "x-user")]))
}

/// Returns the status, `x-ratelimit-limit` and `x-ratelimit-remaining`.
fn limit_headers(response: &HttpResponse) -> (u16, Option<&str>, Option<&str>) {
    (response.status, response.header("x-ratelimit-limit"), response.header("x-ratelimit-remaining"))
}

fn number(response: &HttpResponse, header: &str) -> u64 {
    let value = response.header(header).unwrap_or_else(|| panic!("no {header} in {response:?}"));
    value.parse().unwrap_or_else(|_| panic!("{header} is no number: {value}"))
}

#[test]
fn rejections_of_the_short_tier_do_not_drain_the_long_one() {
    let tiers = |short: u32| {
        format!(
            "  - key: user
    rate_limit:
      tiers:
        - {{ requests: {short}, per: 1h }}
        - {{ requests: 10, per: 1d }}
"
        )
    };
    let stack = Stack::start(&tiers(3), &by_user());
    wait::away_from_the_end_of(HOUR);

    let hour = Some("3, 3;w=3600");
    let mut flow = vec![(200, "2"), (200, "1"), (200, "0")];
    flow.extend([(429, "0"); 12]);
    for (status, remaining) in flow {
        let before = wait::secs_left_of(HOUR);
        let response = stack.get_with("x-user", "alice");
        let after = wait::secs_left_of(HOUR);
        assert_eq!(limit_headers(&response), (status, hour, Some(remaining)));
        let reset = number(&response, "x-ratelimit-reset");
        assert!((after..=before).contains(&reset), "{reset} is not between {after} and {before}");
    }

    // with a higher hourly limit the day is nearer: it counted only the three admitted requests
    stack.rewrite(&tiers(1000));
    stack.await_budget("user", "alice", Some(7));
    assert_eq!(limit_headers(&stack.get_with("x-user", "alice")), (200, Some("10, 10;w=86400"), Some("6")));
}

#[test]
fn the_long_tier_rejects_when_it_is_used_up() {
    let stack = Stack::start(
        "  - key: user
    rate_limit:
      tiers:
        - { requests: 3, per: 1h }
        - { requests: 2, per: 1d }
",
        &by_user(),
    );
    wait::away_from_the_end_of(DAY);

    let day = Some("2, 2;w=86400");
    for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
        assert_eq!(limit_headers(&stack.get_with("x-user", "alice")), (status, day, Some(remaining)));
    }
    let reset = number(&stack.get_with("x-user", "alice"), "x-ratelimit-reset");
    assert!(reset.abs_diff(wait::secs_left_of(DAY)) <= 1, "{reset}");
}

#[test]
fn a_bucket_admits_a_burst_and_reports_when_the_next_token_is_refilled() {
    let stack = Stack::start(
        "  - key: user
    rate_limit: { requests: 1, per: 1h, algorithm: token_bucket, burst: 3 }
",
        &by_user(),
    );

    let begun = Instant::now();
    let flow = [(200, "2", HOUR), (200, "1", 2 * HOUR), (200, "0", 3 * HOUR), (429, "0", HOUR)];
    for (status, remaining, wait) in flow {
        let response = stack.get_with("x-user", "alice");
        assert_eq!(limit_headers(&response), (status, Some("1, 1;w=3600"), Some(remaining)));
        // the time until the bucket is full, or, if it is empty, until the next token
        let reset = number(&response, "x-ratelimit-reset");
        let gone = begun.elapsed().as_secs() + 1;
        assert!((wait - gone..=wait).contains(&reset), "{reset} is not {wait} less up to {gone}");
    }
    assert_eq!(
        limit_headers(&stack.get_with("x-user", "bob")).2,
        Some("2"),
        "each value has a bucket of its own"
    );
}

#[test]
fn a_bucket_fills_again_and_no_faster_than_it_may() {
    const BURST: u32 = 2;
    const PER_SECS: u64 = 2;
    let stack = Stack::start(
        "  - key: user
    rate_limit: { requests: 1, per: 2s, algorithm: token_bucket, burst: 2 }
",
        &by_user(),
    );

    let begun = Instant::now();
    let mut passed = 0;
    let mut rejected = 0;
    // until one more than the burst has passed, and at least one was rejected
    wait::until("a token has come back", || {
        match stack.get_with("x-user", "alice").status {
            200 => passed += 1,
            429 => rejected += 1,
            other => panic!("status {other}"),
        }
        (passed > BURST && rejected > 0).then_some(())
    });
    let refilled = begun.elapsed().as_secs() / PER_SECS;
    assert!(u64::from(passed) <= u64::from(BURST) + refilled, "{passed} passed in {:?}", begun.elapsed());
}

#[test]
fn headers_of_other_styles_reach_the_client() {
    let stack = Stack::with_settings(
        "  - key: user
    rate_limit:
      name: orders
      tiers:
        - { requests: 2, per: 1h }
        - { requests: 90, per: 1d, algorithm: token_bucket, burst: 100 }
",
        &[("WEIR_RESPONSE_HEADERS", "ietf,retry-after")],
        &by_user(),
    );
    wait::away_from_the_end_of(HOUR);

    for (status, remaining) in [(200, 1), (200, 0), (429, 0)] {
        let before = wait::secs_left_of(HOUR);
        let response = stack.get_with("x-user", "alice");
        let after = wait::secs_left_of(HOUR);
        assert_eq!(response.status, status);
        let policies = r#""orders-1h";q=2;w=3600, "orders-1d";q=90;w=86400;burst=100"#;
        assert_eq!(response.header("ratelimit-policy"), Some(policies));
        let state = response.header("ratelimit").expect("a state");
        let reset = state.strip_prefix(&format!("\"orders-1h\";r={remaining};t="));
        let reset: u64 = reset.unwrap_or_else(|| panic!("{state}")).parse().expect("a number");
        assert!((after..=before).contains(&reset), "{reset} is not between {after} and {before}");
        let retry = response.header("retry-after").map(|value| value.parse().expect("a number"));
        assert_eq!(retry, (status == 429).then_some(reset), "only a rejection has a retry time");
        assert_eq!(
            response.header("ratelimit-limit"),
            None,
            "the headers of envoyproxy/ratelimit are not enabled"
        );
    }
}
