//! Requests whose cost is known only when the response has ended, such as the tokens of language models: the budget is
//! checked before the request, and the cost counted after the response.

use serde_json::{Value, json};

use crate::support::{
    Stack,
    backend::{COST, TOKENS},
    bootstrap::{Bootstrap, fixed},
    wait::{self, HOUR},
};

const RULES: &str = "  - key: model
    rate_limit: { unit: hour, requests_per_unit: 10 }
";

/// Returns a descriptor list for the model, with its hits, counted at the end of the stream if `at_the_end`.
fn costing(hits: &Value, at_the_end: bool) -> Value {
    let mut list = fixed("model", "llm");
    list["hits_addend"] = hits.clone();
    list["apply_on_stream_done"] = at_the_end.into();
    list
}

fn start(rules: &str, lists: Value) -> Stack {
    let stack = Stack::start(rules, &Bootstrap::limiting(lists));
    wait::away_from_the_end_of(HOUR);
    stack
}

#[test]
fn tokens_are_counted_when_the_response_has_ended() {
    let check = costing(&json!({ "number": 0 }), false);
    let count = costing(&json!({ "format": format!("%RESP({TOKENS})%") }), true);
    let stack = start(RULES, json!([check, count]));

    let response = stack.get_with(COST, "7");
    assert_eq!((response.status, response.header(TOKENS)), (200, Some("7")));
    assert_eq!(response.header("x-ratelimit-remaining"), Some("10"), "as it was before");
    stack.await_budget("model", "llm", Some(3));

    let response = stack.get_with(COST, "3");
    assert_eq!((response.status, response.header("x-ratelimit-remaining")), (200, Some("3")));
    stack.await_budget("model", "llm", Some(0));

    // used up, but not exceeded: a check passes, and the admitted request is counted
    let response = stack.get_with(COST, "1");
    assert_eq!((response.status, response.header("x-ratelimit-remaining")), (200, Some("0")));
    stack.await_budget("model", "llm", None);

    let rejected = stack.get_with(COST, "1");
    assert_eq!((rejected.status, rejected.header(TOKENS)), (429, None), "the backend did not see it");
}

#[test]
fn a_quota_of_tokens_is_one_hit_a_request() {
    let rules = "  - key: model
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
";
    let check = costing(&json!({ "number": 0 }), false);
    let count = costing(&json!({ "number": 1 }), true);
    let stack = start(rules, json!([check, count]));

    for left in [Some(1), Some(0), None] {
        assert_eq!(stack.get().status, 200);
        stack.await_budget("model", "llm", left);
    }
    assert_eq!(stack.get().status, 429);
}

#[test]
fn reserved_hits_are_refunded() {
    let reserve = costing(&json!({ "number": 4 }), false);
    let give_back =
        costing(&json!({ "format": format!("%RESP({TOKENS})%"), "is_negative_hits": true }), true);
    let stack = start(RULES, json!([reserve, give_back]));

    // the backend reports the unused part
    assert_eq!(stack.get_with(COST, "3").status, 200);
    stack.await_budget("model", "llm", Some(9));
    assert_eq!(stack.get_with(COST, "4").status, 200);
    stack.await_budget("model", "llm", Some(9));
    assert_eq!(stack.get_with(COST, "1000").status, 200);
    stack.await_budget("model", "llm", Some(10));
}
