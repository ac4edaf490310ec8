//! Envoy's configuration decides requests when weir is unreachable.

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, from_header},
    http::{self, HttpRequest},
};

const RULES: &str = "  - key: user
    rate_limit: { unit: hour, requests_per_unit: 0 }
";

fn start(deny_on_failure: bool) -> Stack {
    let bootstrap =
        Bootstrap { deny_on_failure, ..Bootstrap::limiting(json!([from_header("user", "x-user")])) };
    Stack::start(RULES, &bootstrap)
}

#[test]
fn without_weir_requests_pass() {
    let mut stack = start(false);
    assert_eq!(stack.get_with("x-user", "alice").status, 429);

    stack.weir.kill();
    let response = stack.get_with("x-user", "alice");
    assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, None));
    // the alert EnvoyAdmitsWithoutWeir reads this
    let metrics = http::send(stack.envoy.admin, &HttpRequest::get("/stats/prometheus")).body;
    let line = metrics.lines().find(|line| line.starts_with("envoy_cluster_ratelimit_failure_mode_allowed{"));
    let line = line.unwrap_or_else(|| panic!("no such metric in\n{metrics}"));
    assert!(line.contains("envoy_cluster_name=") && line.ends_with(" 1"), "{line}");
}

#[test]
fn or_are_rejected_if_so_configured() {
    let mut stack = start(true);
    assert_eq!(stack.get_with("x-user", "alice").status, 429);

    stack.weir.kill();
    assert_eq!(stack.get_with("x-user", "alice").status, 500);
}
