//! The Istio example: each `EnvoyFilter` in a configuration like istiod's, in the real Envoy, with the rules of the
//! example.

use std::fs;

use serde_json::Value;
use weir_testing::repository;

use crate::support::{
    Stack,
    http::HttpRequest,
    istiod::{Proxy, envoy_filters},
};

/// Returns the text of the rules that the example's values of the chart have.
fn rules(example: &str) -> String {
    let text = fs::read_to_string(repository(&format!("{example}/values.yaml"))).expect("the file");
    let values: Value = serde_saphyr::from_str(&text).expect("YAML");
    let files = values["rules"]["files"].as_object().expect("files");
    assert_eq!(files.len(), 1);
    files.values().next().and_then(Value::as_str).expect("rules").to_owned()
}

/// Starts weir with the rules of the example, and the proxy with the `EnvoyFilter`s of a file.
fn start(file: &str, proxy: &Proxy) -> Stack {
    let filters = envoy_filters(&format!("examples/istio/{file}"));
    Stack::with_bootstrap(&rules("examples/istio"), |weir| proxy.bootstrap(&filters, weir))
}

fn get(path: &str, host: &str) -> HttpRequest {
    HttpRequest::get(path).to(host)
}

/// Asserts that `limit` requests pass, and the next ones are rejected.
#[track_caller]
fn assert_limited(stack: &Stack, request: &HttpRequest, limit: usize) {
    let statuses: Vec<u16> = (0..limit + 2).map(|_| stack.send(request).status).collect();
    let expected = [vec![200; limit], vec![429; 2]].concat();
    assert_eq!(statuses, expected, "{request:?}");
}

#[test]
fn the_gateway_limits_tenants_of_every_host() {
    let proxy = Proxy {
        context: "GATEWAY",
        routes: "http.8080",
        hosts: vec![("shop.example.com:8080", "shop.example.com"), ("*:8080", "*")],
    };
    let stack = start("gateway.yaml", &proxy);
    let of = |tenant: &str, host: &str| get("/", host).with("x-tenant", tenant);

    assert_eq!(stack.send(&of("acme", "shop.example.com")).header("x-ratelimit-limit"), Some("5, 5;w=60"));
    assert_limited(&stack, &of("acme", "other.example.com"), 4);
    assert_limited(&stack, &get("/checkout/now", "shop.example.com").with("x-tenant", "globex"), 2);
    assert_eq!(stack.send(&get("/", "shop.example.com")).status, 200, "without the header there is no limit");
    // the rejected checkouts count for nothing, the two admitted ones for the tenant, too
    assert_limited(&stack, &of("globex", "shop.example.com"), 3);
}

#[test]
fn a_sidecar_limits_what_its_service_accepts() {
    let proxy = Proxy {
        context: "SIDECAR_INBOUND",
        routes: "inbound|9080||",
        hosts: vec![("inbound|http|9080", "reviews"), ("inbound|http|9090", "*")],
    };
    let stack = start("sidecar-inbound.yaml", &proxy);

    assert_limited(&stack, &get("/reviews/1", "reviews"), 6);
    assert_eq!(stack.send(&get("/", "other")).status, 200, "another port has no limit");
}

#[test]
fn a_sidecar_limits_what_its_workload_sends() {
    let proxy = Proxy {
        context: "SIDECAR_OUTBOUND",
        routes: "9080",
        hosts: vec![
            ("ratings.bookinfo.svc.cluster.local:9080", "ratings"),
            ("details.bookinfo.svc.cluster.local:9080", "details"),
            ("allow_any", "*"),
        ],
    };
    let stack = start("sidecar-outbound.yaml", &proxy);

    assert_limited(&stack, &get("/ratings/1", "ratings"), 4);
    assert_eq!(stack.send(&get("/", "details")).status, 200, "another service has no limit");
}

#[test]
fn a_waypoint_limits_the_callers_of_a_service() {
    let proxy = Proxy {
        context: "SIDECAR_INBOUND",
        routes: "inbound-vip|9080|http|reviews.bookinfo.svc.cluster.local",
        hosts: vec![("inbound|http|9080", "*")],
    };
    let stack = start("waypoint.yaml", &proxy);

    assert_limited(&stack, &get("/", "reviews").with("x-client", "a"), 3);
    assert_limited(&stack, &get("/", "reviews").with("x-client", "b"), 3);
}

#[test]
fn filters_are_attached_to_proxies_as_their_kind_demands() {
    for file in ["gateway", "sidecar-inbound", "sidecar-outbound", "waypoint"] {
        for filter in envoy_filters(&format!("examples/istio/{file}.yaml")) {
            let spec = &filter["spec"];
            let referenced = &filter["metadata"]["annotations"]["envoyfilter.istio.io/referenced-services"];
            if file == "waypoint" {
                // a waypoint ignores a workloadSelector, and has a cluster for weir only if it is told
                assert!(spec["targetRefs"][0]["name"].is_string() && spec["workloadSelector"].is_null());
                assert_eq!(referenced, "weir.weir.svc.cluster.local");
            } else {
                assert!(spec["workloadSelector"]["labels"].is_object(), "{file}");
            }
        }
    }
}
