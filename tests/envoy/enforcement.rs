//! Envoy enforces a limit and reports it to the client.

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
    http::{HttpRequest, HttpResponse},
    wait::{self, HOUR},
};

fn by_header(key: &str) -> Bootstrap {
    Bootstrap::limiting(json!([from_header(key, &format!("x-{key}"))]))
}

/// Returns the status, `x-ratelimit-limit` and `x-ratelimit-remaining`.
fn limit_headers(response: &HttpResponse) -> (u16, Option<&str>, Option<&str>) {
    (response.status, response.header("x-ratelimit-limit"), response.header("x-ratelimit-remaining"))
}

/// The recipe of docs/how-to.md.
#[test]
fn the_access_log_names_the_rule_that_rejects() {
    let page = include_str!("../../docs/how-to.md");
    let start = page.find("access_log:\n").expect("the recipe");
    let recipe = page[start..].split("```").next().expect("its text");
    let recipe: serde_json::Value = serde_saphyr::from_str(recipe).expect("YAML");
    let bootstrap = Bootstrap { access_log: recipe["access_log"].clone(), ..by_header("user") };
    let rules = "  - key: user\n    rate_limit: { unit: year, requests_per_unit: 1 }\n";
    let stack = Stack::with_settings(rules, &[("WEIR_RULE_METADATA", "true")], &bootstrap);
    assert_eq!([200, 429], [(); 2].map(|()| stack.get_with("x-user", "alice").status));
    wait::until("the access log is written", || {
        let output = stack.envoy.output();
        let ends = [" 200 - ", " 429 test.user "];
        ends.iter().all(|end| output.lines().any(|line| format!("{line} ").contains(end))).then_some(())
    });
}

#[test]
fn passes_until_the_limit_and_reports_it() {
    let stack = Stack::start(
        "  - key: user
    rate_limit: { unit: hour, requests_per_unit: 3 }
",
        &by_header("user"),
    );
    wait::away_from_the_end_of(HOUR);
    let policy = Some("3, 3;w=3600");

    for (status, remaining) in [(200, "2"), (200, "1"), (200, "0"), (429, "0"), (429, "0")] {
        let before = wait::secs_left_of(HOUR);
        let response = stack.get_with("x-user", "alice");
        let after = wait::secs_left_of(HOUR);

        assert_eq!(limit_headers(&response), (status, policy, Some(remaining)));
        let reset: u64 = response.header("x-ratelimit-reset").expect("a reset").parse().expect("a number");
        assert!((after..=before).contains(&reset), "{reset} is not between {after} and {before}");
        assert_eq!(response.header("x-envoy-ratelimited"), (status == 429).then_some("true"));
    }
    assert_eq!(
        limit_headers(&stack.get_with("x-user", "bob")),
        (200, policy, Some("2")),
        "each value by itself"
    );
    assert_eq!(
        limit_headers(&stack.get()),
        (200, None, None),
        "without the header there is nothing to count"
    );
}

#[test]
fn a_period_that_is_not_a_unit_is_reported_without_a_window() {
    let stack = Stack::start(
        "  - key: user
    rate_limit: { requests: 2, per: 90m }
",
        &by_header("user"),
    );
    let period = HOUR * 3 / 2;
    wait::away_from_the_end_of(period);

    for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
        let before = wait::secs_left_of(period);
        let response = stack.get_with("x-user", "alice");
        let after = wait::secs_left_of(period);

        assert_eq!(limit_headers(&response), (status, Some("2"), Some(remaining)));
        let reset: u64 = response.header("x-ratelimit-reset").expect("a reset").parse().expect("a number");
        assert!((after..=before).contains(&reset), "{reset} is not between {after} and {before}");
    }
}

#[test]
fn envoy_understands_every_unit() {
    let units = [
        ("second", "1"),
        ("minute", "60"),
        ("hour", "3600"),
        ("day", "86400"),
        ("week", "604800"),
        ("month", "2592000"),
        ("year", "31536000"),
    ];
    let rule = |(unit, _): &(&str, &str)| {
        format!(
            "  - key: unit\n    value: {unit}\n    rate_limit: {{ unit: {unit}, requests_per_unit: 9 }}\n"
        )
    };
    let stack = Stack::start(&units.iter().map(rule).collect::<String>(), &by_header("unit"));

    for (unit, seconds) in units {
        let policy = format!("9, 9;w={seconds}");
        assert_eq!(
            limit_headers(&stack.get_with("x-unit", unit)),
            (200, Some(&*policy), Some("8")),
            "{unit}"
        );
    }
}

#[test]
fn of_two_limits_the_nearer_is_reported_with_its_name() {
    let both = json!([from_header("user", "x-user"), from_header("team", "x-team")]);
    let stack = Stack::start(
        "  - key: user
    rate_limit: { name: per-user, unit: hour, requests_per_unit: 5 }
  - key: team
    rate_limit: { name: per-team, unit: day, requests_per_unit: 2 }
",
        &Bootstrap::limiting(both),
    );
    wait::away_from_the_end_of(HOUR);
    let request = HttpRequest::get("/").with("x-user", "alice").with("x-team", "red");
    let policies = r#", 5;w=3600;name="per-user", 2;w=86400;name="per-team""#;

    for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
        let response = stack.send(&request);
        assert_eq!(limit_headers(&response), (status, Some(&*format!("2{policies}")), Some(remaining)));
    }
    // like envoyproxy/ratelimit, rejected requests count, so the third one counted for the user
    assert_eq!(limit_headers(&stack.get_with("x-user", "alice")).2, Some("1"));
}

#[test]
fn an_unlimited_rule_and_a_rule_without_a_limit_report_nothing() {
    let stack = Stack::start(
        "  - key: user
    rate_limit: { unit: hour, requests_per_unit: 0 }
  - key: user
    value: root
    rate_limit: { unlimited: true }
  - key: user
    value: friend
",
        &by_header("user"),
    );

    assert_eq!(limit_headers(&stack.get_with("x-user", "alice")).0, 429);
    assert_eq!(limit_headers(&stack.get_with("x-user", "root")), (200, None, None));
    assert_eq!(limit_headers(&stack.get_with("x-user", "friend")), (200, None, None));
}

#[test]
fn a_changed_rule_applies_and_keeps_its_counts() {
    let rule =
        |limit: u32| format!("  - key: user\n    rate_limit: {{ unit: hour, requests_per_unit: {limit} }}\n");
    let stack = Stack::start(&rule(2), &by_header("user"));
    wait::away_from_the_end_of(HOUR);
    for status in [200, 200, 429] {
        assert_eq!(stack.get_with("x-user", "alice").status, status);
    }

    stack.rewrite(&rule(10));
    stack.await_budget("user", "alice", Some(7));
    assert_eq!(limit_headers(&stack.get_with("x-user", "alice")), (200, Some("10, 10;w=3600"), Some("6")));

    // an invalid rule changes nothing
    stack.rewrite("  - key: user\n    rate_limit: { unit: fortnight, requests_per_unit: 1 }\n");
    stack.await_log("fortnight");
    assert_eq!(limit_headers(&stack.get_with("x-user", "alice")), (200, Some("10, 10;w=3600"), Some("5")));
}
