//! Envoy can send a limit override, which takes precedence over the rules.

use serde_json::json;

use crate::support::{
    Stack,
    bootstrap::{Bootstrap, filter, from_header},
    wait::{self, HOUR},
};

#[test]
fn a_limit_from_envoy_replaces_the_rule() {
    let mut list = from_header("user", "x-user");
    list["limit"] = json!({ "dynamic_metadata": {
        "metadata_key": { "key": "test.limits", "path": [{ "key": "user" }] },
    } });
    let limit = json!({ "requests_per_unit": 3, "unit": "HOUR" });
    let set = json!({ "metadata": [{ "metadata_namespace": "test.limits", "value": { "user": limit } }] });
    let bootstrap = Bootstrap {
        before: vec![filter("set_metadata", "set_metadata.v3.Config", set)],
        ..Bootstrap::limiting(json!([list]))
    };
    let stack = Stack::start(
        "  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1 }
",
        &bootstrap,
    );
    wait::away_from_the_end_of(HOUR);

    for (status, remaining) in [(200, "2"), (200, "1"), (200, "0"), (429, "0")] {
        let response = stack.get_with("x-user", "alice");
        assert_eq!(response.status, status);
        assert_eq!(response.header("x-ratelimit-limit"), Some("3, 3;w=3600"));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(remaining));
    }
}
