//! Limits that the reference has not: tiers, token buckets, and the headers that tell of them.

use std::time::Instant;

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
    http::Answer,
    wait::{self, DAY, HOUR},
};

fn by_user() -> Bootstrap {
    Bootstrap::limiting(json!([from_header("user", "x-user")]))
}

/// What Envoy says of the limit: `x-ratelimit-limit` and `-remaining`.
fn told(answer: &Answer) -> (u16, Option<&str>, Option<&str>) {
    (answer.status, answer.header("x-ratelimit-limit"), answer.header("x-ratelimit-remaining"))
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header).unwrap_or_else(|| panic!("no {header} in {answer:?}"));
    value.parse().unwrap_or_else(|_| panic!("{header} is no number: {value}"))
}

#[test]
fn the_short_tier_refuses_and_the_long_one_is_not_drained_by_it() {
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
        let answer = stack.get_with("x-user", "alice");
        let after = wait::secs_left_of(HOUR);
        assert_eq!(told(&answer), (status, hour, Some(remaining)));
        let reset = number(&answer, "x-ratelimit-reset");
        assert!((after..=before).contains(&reset), "{reset} is not between {after} and {before}");
    }

    // with room in the hour, the day is the nearer one: it has paid for the three that passed, and for no more
    stack.rewrite(&tiers(1000));
    stack.await_budget("user", "alice", Some(7));
    assert_eq!(told(&stack.get_with("x-user", "alice")), (200, Some("10, 10;w=86400"), Some("6")));
}

#[test]
fn the_long_tier_refuses_when_it_is_used_up() {
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
        assert_eq!(told(&stack.get_with("x-user", "alice")), (status, day, Some(remaining)));
    }
    let reset = number(&stack.get_with("x-user", "alice"), "x-ratelimit-reset");
    assert!(reset.abs_diff(wait::secs_left_of(DAY)) <= 1, "{reset}");
}

#[test]
fn a_bucket_lets_a_burst_pass_and_says_when_the_next_token_is_there() {
    let stack = Stack::start(
        "  - key: user
    rate_limit: { requests: 1, per: 1h, algorithm: token_bucket, burst: 3 }
",
        &by_user(),
    );

    let begun = Instant::now();
    let flow = [(200, "2", HOUR), (200, "1", 2 * HOUR), (200, "0", 3 * HOUR), (429, "0", HOUR)];
    for (status, remaining, wait) in flow {
        let answer = stack.get_with("x-user", "alice");
        assert_eq!(told(&answer), (status, Some("1, 1;w=3600"), Some(remaining)));
        // until the bucket is full, and when it is empty until there is one token
        let reset = number(&answer, "x-ratelimit-reset");
        let gone = begun.elapsed().as_secs() + 1;
        assert!((wait - gone..=wait).contains(&reset), "{reset} is not {wait} less up to {gone}");
    }
    assert_eq!(told(&stack.get_with("x-user", "bob")).2, Some("2"), "each value has a bucket of its own");
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
    let mut refused = 0;
    // until one more than the burst has passed, and one was refused on the way
    wait::until("a token has come back", || {
        match stack.get_with("x-user", "alice").status {
            200 => passed += 1,
            429 => refused += 1,
            other => panic!("status {other}"),
        }
        (passed > BURST && refused > 0).then_some(())
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
        let answer = stack.get_with("x-user", "alice");
        let after = wait::secs_left_of(HOUR);
        assert_eq!(answer.status, status);
        let policies = r#""orders-1h";q=2;w=3600, "orders-1d";q=90;w=86400;burst=100"#;
        assert_eq!(answer.header("ratelimit-policy"), Some(policies));
        let state = answer.header("ratelimit").expect("a state");
        let reset = state.strip_prefix(&format!("\"orders-1h\";r={remaining};t="));
        let reset: u64 = reset.unwrap_or_else(|| panic!("{state}")).parse().expect("a number");
        assert!((after..=before).contains(&reset), "{reset} is not between {after} and {before}");
        let retry = answer.header("retry-after").map(|value| value.parse().expect("a number"));
        assert_eq!(retry, (status == 429).then_some(reset), "only who is refused is told to come again");
        assert_eq!(answer.header("ratelimit-limit"), None, "the reference's were not asked for");
    }
}
