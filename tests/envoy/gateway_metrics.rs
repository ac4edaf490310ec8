//! Envoy Gateway's dashboard of its rate limit service: a real Prometheus has data for its queries, with Envoy
//! Gateway's own mapper file and with weir's names. Its query of the Go runtime's garbage collection has no data, since
//! weir has none.

use std::{fs, net::SocketAddr};

use serde_json::json;
use tempfile::TempDir;

use crate::{
    gateway_mapper::envoy_gateway_mapper,
    support::{
        http::{self, HttpRequest},
        prometheus::Prometheus,
        wait,
        weir::Weir,
    },
};

const DOMAIN: &str = "default/eg/http";
const ROUTE: &str = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example";
const RULE: &str = "rule-0-match-0";

/// Exceeds the limit of three an hour, so that each stat of the rule is above 0.
fn exceed_the_limit(weir: SocketAddr) {
    let entries = [ROUTE, RULE].map(|name| json!({ "key": name, "value": name }));
    let request = json!({ "domain": DOMAIN, "descriptors": [{ "entries": entries }] }).to_string();
    wait::away_from_the_end_of(wait::HOUR);
    for _ in 0..5 {
        http::send(weir, &HttpRequest::post("/json", request.clone()));
    }
}

#[test]
fn the_dashboard_has_data() {
    let folder = TempDir::new().expect("a folder");
    let (config, mapper) = (folder.path().join("config"), folder.path().join("conf.yaml"));
    fs::create_dir(&config).expect("a folder");
    fs::write(&mapper, envoy_gateway_mapper()).expect("a file");
    let rule = |name: &str, more: &str| format!("{{key: {name}, value: {name}, {more}}}");
    let limit = rule(RULE, "rate_limit: {unit: hour, requests_per_unit: 3}");
    let rules =
        format!("domain: {DOMAIN}\ndescriptors:\n- {}\n", rule(ROUTE, &format!("descriptors: [{limit}]")));
    fs::write(config.join("rules.yaml"), rules).expect("a file");

    for settings in [&[("PROMETHEUS_MAPPER_YAML", mapper.to_str().expect("UTF-8"))][..], &[]] {
        let run = TempDir::new().expect("a folder");
        let weir = Weir::start(&config, settings, run.path());
        exceed_the_limit(weir.http);
        // the label is the pod's, which Prometheus adds in Kubernetes
        let labels = "app_kubernetes_io_component: ratelimit";
        let prometheus = Prometheus::start_with(weir.http, labels, run.path());
        let rule = format!("domain=\"{DOMAIN}\", key1=\"{ROUTE}_{ROUTE}\", key2=\"{RULE}_{RULE}\"");
        let counter = |name: &str| format!("ratelimit_service_rate_limit_{name}{{{rule}}}");
        let process = |name: &str| {
            format!("(process_{name}_memory_bytes{{app_kubernetes_io_component=\"ratelimit\"}})/1000000")
        };
        for (query, expected) in [
            (counter("total_hits"), 5.0..=5.0),
            (counter("near_limit"), 1.0..=1.0),
            (counter("over_limit"), 2.0..=2.0),
            (process("resident"), 1.0..=1e6),
            (process("virtual"), 1.0..=1e9),
        ] {
            wait::until(&format!("{query} has data"), || {
                let values = prometheus.query(&query).unwrap_or_else(|error| panic!("{query}: {error}"));
                (values.len() == 1 && expected.contains(&values[0])).then_some(())
            });
        }
    }
}
