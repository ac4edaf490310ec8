//! Configurations like those that istiod gives its proxies, and the patches of `EnvoyFilter`s, applied as istiod does.

use std::{fs, net::SocketAddr};

use serde_json::{Value, json};
use weir_testing::repository;

use super::{
    backend,
    bootstrap::{cluster, endpoint, filter},
};

/// The cluster that istiod makes of weir's Service, if weir is installed as `weir` in the namespace `weir`.
const WEIR: &str = "outbound|8081||weir.weir.svc.cluster.local";

/// A proxy of a mesh: its place, the name of its route configuration, and its virtual hosts with their domains.
pub(crate) struct Proxy {
    pub(crate) context: &'static str,
    pub(crate) routes: &'static str,
    pub(crate) hosts: Vec<(&'static str, &'static str)>,
}

/// Reads the `EnvoyFilter`s of a file of the repository.
pub(crate) fn envoy_filters(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(repository(path)).expect("the file");
    let filters: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    assert!(filters.iter().all(|filter| filter["kind"] == "EnvoyFilter") && !filters.is_empty());
    filters
}

// === impl Proxy ===

impl Proxy {
    /// Returns the configuration of this proxy with the patches of `filters`.
    pub(crate) fn bootstrap(&self, filters: &[Value], weir: SocketAddr) -> Value {
        let mut bootstrap = self.unpatched(weir);
        for patch in
            filters.iter().flat_map(|filter| filter["spec"]["configPatches"].as_array().expect("patches"))
        {
            assert_eq!(patch["match"]["context"], self.context, "a patch of another place has no effect");
            match patch["applyTo"].as_str() {
                Some("HTTP_FILTER") => insert_filter(&mut bootstrap, patch),
                Some("VIRTUAL_HOST") => self.merge_hosts(&mut bootstrap, patch),
                other => panic!("applyTo {other:?}"),
            }
        }
        // a busy machine is no failure of weir
        for filter in http_filters(&mut bootstrap) {
            if filter["name"] == "envoy.filters.http.ratelimit" {
                filter["typed_config"]["timeout"] = "30s".into();
                filter["typed_config"]["failure_mode_deny"] = true.into();
            }
        }
        bootstrap
    }

    fn unpatched(&self, weir: SocketAddr) -> Value {
        let hosts: Vec<Value> = self
            .hosts
            .iter()
            .map(|(name, domain)| {
                json!({
                    "name": name, "domains": [domain], "include_request_attempt_count": true,
                    "routes": [{ "name": "default", "match": { "prefix": "/" }, "route": { "cluster": "service", "timeout": "0s" } }],
                })
            })
            .collect();
        let mut weir = cluster(WEIR, &json!([{ "lb_endpoints": [endpoint(weir)] }]));
        weir["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        });
        let any = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0 } });
        json!({
            "admin": { "address": any },
            "static_resources": {
                "clusters": [weir, cluster("service", &json!([{ "lb_endpoints": [endpoint(backend::start("service"))] }]))],
                "listeners": [{
                    "name": "listener", "address": any,
                    "filter_chains": [{ "filters": [{
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.network.\
                                      http_connection_manager.v3.HttpConnectionManager",
                            "stat_prefix": "proxy",
                            "route_config": { "name": self.routes, "virtual_hosts": hosts },
                            "normalize_path": true,
                            "http_filters": [
                                filter("fault", "fault.v3.HTTPFault", json!({})),
                                filter("cors", "cors.v3.Cors", json!({})),
                                filter("router", "router.v3.Router", json!({})),
                            ],
                        },
                    }] }],
                }],
            },
        })
    }

    /// Merges into the virtual hosts that match. There must be one, or the patch has no effect.
    fn merge_hosts(&self, bootstrap: &mut Value, patch: &Value) {
        assert_eq!(patch["patch"]["operation"], "MERGE");
        let wanted = &patch["match"]["routeConfiguration"];
        let known = ["name", "vhost"];
        assert!(
            wanted.as_object().expect("a match").keys().all(|key| known.contains(&key.as_str())),
            "{wanted}"
        );
        assert!(wanted["name"].is_null() || wanted["name"] == self.routes, "{wanted}");
        let name = wanted["vhost"]["name"].as_str().expect("a name");
        let hosts = &mut connection_manager(bootstrap)["route_config"]["virtual_hosts"];
        let mut matched = 0;
        for host in hosts.as_array_mut().expect("hosts") {
            if name.is_empty() || host["name"] == name {
                merge(host, &patch["patch"]["value"]);
                matched += 1;
            }
        }
        assert!(matched > 0, "no virtual host {name}");
    }
}

fn connection_manager(bootstrap: &mut Value) -> &mut Value {
    &mut bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
}

fn http_filters(bootstrap: &mut Value) -> &mut Vec<Value> {
    connection_manager(bootstrap)["http_filters"].as_array_mut().expect("filters")
}

/// Inserts before the named filter of the connection manager.
fn insert_filter(bootstrap: &mut Value, patch: &Value) {
    assert_eq!(patch["patch"]["operation"], "INSERT_BEFORE");
    let wanted = &patch["match"]["listener"]["filterChain"]["filter"];
    assert_eq!(wanted["name"], "envoy.filters.network.http_connection_manager");
    let filters = http_filters(bootstrap);
    let place = filters.iter().position(|filter| filter["name"] == wanted["subFilter"]["name"]);
    filters.insert(place.expect("the filter"), patch["patch"]["value"].clone());
}

/// Merges as protobuf does: messages field by field, lists by appending.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => into.extend(from.iter().cloned()),
        (into, from) => *into = from.clone(),
    }
}
