//! Quotas: a request passes as long as one of them has something left.

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, fixed, from_header},
    http::HttpRequest,
    wait::{self, HOUR},
};

const RULES: &str = "  - key: service
    value: small
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: service
    value: big
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 3 }
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 2 }
";

fn bootstrap() -> Bootstrap {
    let lists = json!([fixed("service", "small"), fixed("service", "big"), from_header("user", "x-user")]);
    Bootstrap::limiting(lists)
}

#[test]
fn over_only_when_all_quotas_are() {
    let stack = Stack::start(RULES, &bootstrap());
    wait::away_from_the_end_of(HOUR);

    assert_eq!(stack.get().status, 200);
    assert_eq!((stack.budget("service", "small"), stack.budget("service", "big")), (Some(0), Some(2)));
    // small is over from now on
    assert_eq!(stack.get().status, 200);
    assert_eq!((stack.budget("service", "small"), stack.budget("service", "big")), (None, Some(1)));
    assert_eq!(stack.get().status, 200);
    assert_eq!(stack.get().status, 429);
}

#[test]
fn a_limit_that_is_not_a_quota_rejects_by_itself() {
    let stack = Stack::start(RULES, &bootstrap());
    wait::away_from_the_end_of(HOUR);
    let alice = HttpRequest::get("/").with("x-user", "alice");

    assert_eq!([stack.send(&alice).status, stack.send(&alice).status], [200; 2]);
    assert_eq!(stack.send(&alice).status, 429, "though big has one left");
    assert_eq!(stack.get_with("x-user", "bob").status, 429, "now both quotas are over");
}

#[test]
fn a_whole_service_in_quota_mode_makes_every_limit_a_quota() {
    let stack = Stack::with_settings(RULES, &[("QUOTA_MODE", "true")], &bootstrap());
    wait::away_from_the_end_of(HOUR);
    let alice = HttpRequest::get("/").with("x-user", "alice");

    for status in [200, 200, 200, 429] {
        assert_eq!(stack.send(&alice).status, status, "the user's limit is one quota of three");
    }
}
