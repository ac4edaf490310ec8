//! The Envoy example of the documentation, with the rules that weir serves by default.

use crate::support::{
    Stack,
    http::{HttpRequest, HttpResponse},
};

fn start() -> Stack {
    Stack::from_example("config", "examples/envoy/envoy.yaml")
}

/// The configuration of compose.yaml is that of the example, but for its addresses.
#[test]
fn compose_uses_the_example() {
    let read = |path: &str| std::fs::read_to_string(weir_testing::repository(path)).expect("the file");
    let from_admin = |text: String| text.split_once("\nadmin:").expect("an admin address").1.to_owned();
    let example = from_admin(read("examples/envoy/envoy.yaml"))
        .replace("address: 127.0.0.1, port_value: 10000", "address: 0.0.0.0, port_value: 10000")
        .replace("address: 127.0.0.1, port_value: 8081", "address: weir, port_value: 8081")
        .replacen(
            "- name: weir\n      type: STATIC",
            "- name: weir\n      type: STRICT_DNS\n      dns_lookup_family: V4_ONLY",
            1,
        );
    assert_eq!(from_admin(read("examples/compose/envoy.yaml")), example);
}

fn limit_headers(response: &HttpResponse) -> (u16, Option<&str>) {
    (response.status, response.header("x-ratelimit-limit"))
}

#[test]
fn a_greeting_passes_three_times_a_minute() {
    let stack = start();

    let first = stack.get_with("x-hello", "world");
    assert_eq!((limit_headers(&first), &*first.body), ((200, Some("3, 3;w=60")), "passed\n"));
    // seven requests exceed the limits of two windows, wherever the window ends
    let rejected = (0..6).any(|_| stack.get_with("x-hello", "world").status == 429);
    assert!(rejected, "the limit is kept");
    assert_eq!(limit_headers(&stack.get()), (200, None), "a request without the header has no limit");
}

#[test]
fn tenants_paths_and_methods_match_their_rules() {
    let stack = start();
    let get = |tenant: &str, path: &str| stack.send(&HttpRequest::get(path).with("x-tenant", tenant));

    // reports the nearer tier, whose ten seconds are not one of Envoy's units
    assert_eq!(limit_headers(&get("acme", "/v1/organizations/7/products/9")), (200, Some("100")));
    assert_eq!(limit_headers(&get("acme", "/v1/checkout")), (200, Some("5, 5;w=60")));
    assert_eq!(
        limit_headers(&get("acme", "/v1/checkout?basket=7")),
        (200, Some("5, 5;w=60")),
        "without its query"
    );
    assert_eq!(
        limit_headers(&get("acme", "//v1/./checkout")),
        (200, Some("5, 5;w=60")),
        "after normalization"
    );
    assert_eq!(limit_headers(&get("acme", "/about")), (200, Some("60, 60;w=60")));
    assert_eq!(limit_headers(&get("monitoring", "/about")), (200, None), "has no limit");
}

#[test]
fn a_burst_of_writes_passes_and_guessing_does_not() {
    let stack = start();
    let post = |path: &str| stack.send(&HttpRequest::post(path, String::new()).with("x-tenant", "acme"));

    for least in [29, 28, 27] {
        let response = post("/v1/organizations/7/products/9");
        assert_eq!(limit_headers(&response), (200, Some("10, 10;w=60;name=\"write-product\"")));
        let left = response.header("x-ratelimit-remaining").and_then(|left| left.parse().ok());
        // a token comes back every six seconds
        assert!(
            (least..30).contains(&left.expect("a number")),
            "{response:?}: more than are refilled within a minute"
        );
    }
    for status in [200, 200, 200, 200, 200, 429, 429] {
        assert_eq!(post("/v1/login").status, status);
    }
}
