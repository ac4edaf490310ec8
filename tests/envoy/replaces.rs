//! Rules that replace other rules.

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
    http::HttpRequest,
    wait::{self, HOUR},
};

const RULES: &str = "  - key: user
    rate_limit: { name: ordinary, unit: hour, requests_per_unit: 1 }
  - key: user
    value: banned
    rate_limit: { name: ban, unit: hour, requests_per_unit: 0 }
  - key: plan
    value: gold
    rate_limit: { unit: hour, requests_per_unit: 4, replaces: [{ name: ordinary }] }
  - key: plan
    value: pardon
    rate_limit: { unlimited: true, replaces: [{ name: ban }, { name: ordinary }] }
  - key: plan
    value: other
    rate_limit: { unit: hour, requests_per_unit: 2, replaces: [{ name: no-such-rule }] }
";

#[test]
fn a_replaced_limit_neither_rejects_nor_counts() {
    // the replaced rule comes first in one order and last in the other: it makes no difference
    let user = from_header("user", "x-user");
    let plan = from_header("plan", "x-plan");
    for order in [json!([user, plan]), json!([plan, user])] {
        let stack = Stack::start(RULES, &Bootstrap::limiting(order));
        wait::away_from_the_end_of(HOUR);
        let status = |user: &str, plan: &str| {
            stack.send(&HttpRequest::get("/").with("x-user", user).with("x-plan", plan)).status
        };

        // gold is counted, and has three left
        assert_eq!(status("banned", "gold"), 429, "a rule of another name is not replaced");
        assert_eq!([status("alice", "gold"), status("alice", "gold"), status("alice", "gold")], [200; 3]);
        assert_eq!(status("alice", "gold"), 429, "the limit in its place is kept");
        assert_eq!(stack.budget("user", "alice"), Some(1), "the replaced one was not counted");
        assert_eq!(stack.get_with("x-user", "alice").status, 200);
        assert_eq!(stack.get_with("x-user", "alice").status, 429);

        assert_eq!(status("banned", "pardon"), 200, "an unlimited rule can replace too");
        assert_eq!(status("bob", "other"), 200);
        assert_eq!(status("bob", "other"), 429, "nothing of that name: both are counted");
    }
}
