//! Envoy routes requests to a backend with quota left, which weir names in its dynamic metadata.

use serde_json::{Value, json};

use crate::support::{
    Stack, backend,
    bootstrap::{self, BACKEND, Bootstrap, filter, fixed},
    wait::{self, HOUR},
};

const RULES: &str = "  - key: service
    value: first
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
    metadata: { with_quota: { name: first } }
  - key: service
    value: second
    quota_mode: true
    rate_limit: { unit: hour, requests_per_unit: 2 }
    metadata: { with_quota: { name: second } }
";

/// Returns an endpoint of the cluster. The load balancer and the counting action identify it by its name.
fn locality(name: &'static str) -> Value {
    let mut endpoint = bootstrap::endpoint(backend::start(name));
    endpoint["metadata"] = json!({ "filter_metadata": { "envoy.lb": { "service": name } } });
    json!({
        "locality": { "region": name },
        "metadata": { "filter_metadata": { "counted": { "name": name } } },
        "lb_endpoints": [endpoint],
    })
}

fn routing() -> Bootstrap {
    let mut cluster = bootstrap::cluster(BACKEND, &json!([locality("first"), locality("second")]));
    cluster["lb_subset_config"] =
        json!({ "fallback_policy": "NO_FALLBACK", "subset_selectors": [{ "keys": ["service"] }] });

    let check = |service| {
        let mut list = fixed("service", service);
        list["hits_addend"] = json!({ "number": 0 });
        list
    };
    let count = json!({
        "actions": [{ "metadata": {
            "descriptor_key": "service",
            "source": "CLUSTER_LOCALITY_ENTRY",
            "metadata_key": { "key": "counted", "path": [{ "key": "name" }] },
        } }],
        "hits_addend": { "number": 1 },
        "apply_on_stream_done": true,
    });

    // copies the rule's metadata to a header, and the header to the load balancer's metadata
    let to_header = json!({ "mutations": { "request_mutations": [{ "append": {
        "header": {
            "key": "x-service",
            "value": "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:with_quota:name)%",
        },
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    } }] } });
    let to_balancer = json!({ "request_rules": [{
        "header": "x-service",
        "on_header_present": { "metadata_namespace": "envoy.lb", "key": "service", "type": "STRING" },
    }] });
    Bootstrap {
        after: vec![
            filter("header_mutation", "header_mutation.v3.HeaderMutation", to_header),
            filter("header_to_metadata", "header_to_metadata.v3.Config", to_balancer),
        ],
        cluster,
        ..Bootstrap::limiting(json!([check("first"), check("second"), count]))
    }
}

#[test]
fn a_request_goes_where_quota_is_left() {
    let stack = Stack::with_settings(RULES, &[("RESPONSE_DYNAMIC_METADATA", "true")], &routing());
    wait::away_from_the_end_of(HOUR);

    // requests are counted when they end, so each backend gets one more than its limit
    let flow =
        [("first", Some(0)), ("first", None), ("second", Some(1)), ("second", Some(0)), ("second", None)];
    for (service, left) in flow {
        let response = stack.get();
        assert_eq!((response.status, response.header(backend::BACKEND)), (200, Some(service)));
        stack.await_budget("service", service, left);
    }
    assert_eq!(stack.get().status, 429, "no quota is left anywhere");
}
