//! The example of a budget of tokens for language models, with the real Envoy and the rules of the example.

use serde_json::{Value, json};

use crate::support::{
    Stack,
    http::{self, HttpRequest},
    wait::{self, DAY},
};

fn start() -> Stack {
    let stack = Stack::from_example("examples/llm-tokens/config", "examples/llm-tokens/envoy.yaml");
    wait::away_from_the_end_of(DAY);
    stack
}

fn ask(stack: &Stack, path: &str, tenant: &str) -> u16 {
    stack.send(&HttpRequest::post(path, "{}".into()).with("x-tenant", tenant)).status
}

/// Returns the tokens that a tenant has left, by a check. None if it is rejected.
fn left(stack: &Stack, tenant: &str) -> Option<u64> {
    let request = json!({
        "domain": "llm",
        "descriptors": [{
            "entries": [{ "key": "tenant", "value": tenant }, { "key": "in_flight", "value": "check" }],
        }],
    });
    let response = http::send(stack.weir.http, &HttpRequest::post("/json", request.to_string()));
    let body: Value = serde_json::from_str(&response.body).expect("JSON");
    // protobuf's JSON mapping omits zeros
    (response.status == 200)
        .then(|| body.pointer("/statuses/0/limitRemaining").and_then(Value::as_u64).unwrap_or(0))
}

/// Waits until the tenant has that many tokens left: they are counted after the answer.
fn await_left(stack: &Stack, tenant: &str, tokens: Option<u64>) {
    wait::until(&format!("{tenant} has {tokens:?} left"), || (left(stack, tenant) == tokens).then_some(()));
}

#[test]
fn the_tokens_of_an_answer_are_counted_when_it_is_complete() {
    let stack = start();
    for (path, rest) in [("/v1/chat/completions", Some(60_000)), ("/stream", Some(20_000))] {
        assert_eq!(ask(&stack, path, "acme"), 200);
        await_left(&stack, "acme", rest);
    }
    // the last answer may exceed the budget, because its cost is known only at its end
    assert_eq!(ask(&stack, "/stream", "acme"), 200);
    await_left(&stack, "acme", None);
    assert_eq!(ask(&stack, "/v1/chat/completions", "acme"), 429);
    assert_eq!(ask(&stack, "/v1/chat/completions", "globex"), 200, "each tenant has a budget of its own");
}

#[test]
fn a_request_without_a_tenant_is_rejected() {
    let stack = start();
    assert_eq!(stack.send(&HttpRequest::post("/v1/chat/completions", "{}".into())).status, 429);
    assert_eq!(ask(&stack, "/v1/chat/completions", "acme"), 200);
}

#[test]
fn an_answer_without_tokens_costs_nothing() {
    let stack = start();
    assert_eq!(ask(&stack, "/broken", "acme"), 503);
    await_left(&stack, "acme", Some(100_000));
    assert_eq!(ask(&stack, "/v1/chat/completions", "acme"), 200);
    await_left(&stack, "acme", Some(60_000));
}
