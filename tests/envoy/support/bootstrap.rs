//! Envoy's configuration, built from JSON values.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::backend;

/// The cluster of admitted requests.
pub(crate) const BACKEND: &str = "backend";

/// A test's Envoy configuration: one listener, one rate limit filter, and the test's settings.
pub(crate) struct Bootstrap {
    /// The route's `rate_limits`: lists of entries for every request.
    pub(crate) rate_limits: Value,
    /// Filters before the rate limit filter.
    pub(crate) before: Vec<Value>,
    /// Filters between the rate limit filter and the router.
    pub(crate) after: Vec<Value>,
    /// The cluster of admitted requests: by default a backend of that name. It must be a real one: Envoy does not limit
    /// a `direct_response`.
    pub(crate) cluster: Value,
    /// Rejects requests when weir does not reply, so that a test notices.
    pub(crate) deny_on_failure: bool,
    /// The access logs.
    pub(crate) access_log: Value,
}

impl Bootstrap {
    pub(crate) fn limiting(rate_limits: Value) -> Self {
        let endpoints = json!([{ "lb_endpoints": [endpoint(backend::start(BACKEND))] }]);
        Self {
            rate_limits,
            cluster: cluster(BACKEND, &endpoints),
            before: Vec::new(),
            after: Vec::new(),
            deny_on_failure: true,
            access_log: json!([]),
        }
    }

    pub(crate) fn to_json(&self, weir: SocketAddr) -> Value {
        let mut weir = cluster("weir", &json!([{ "lb_endpoints": [endpoint(weir)] }]));
        weir["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        });
        let mut filters = self.before.clone();
        filters.push(self.rate_limit_filter());
        filters.extend(self.after.iter().cloned());
        filters.push(filter("router", "router.v3.Router", json!({})));

        let route = json!({
            "match": { "prefix": "/" },
            "route": { "cluster": BACKEND },
            "typed_per_filter_config": { "envoy.filters.http.ratelimit": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
                "rate_limits": self.rate_limits,
            } },
        });
        json!({
            "admin": { "address": address(([127, 0, 0, 1], 0).into()) },
            "static_resources": {
                "clusters": [weir, self.cluster],
                "listeners": [{
                    "address": address(([127, 0, 0, 1], 0).into()),
                    "filter_chains": [{ "filters": [{
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.network.\
                                      http_connection_manager.v3.HttpConnectionManager",
                            "stat_prefix": "test",
                            "http_filters": filters,
                            "access_log": self.access_log,
                            "route_config": {
                                "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route] }],
                            },
                        },
                    }] }],
                }],
            },
        })
    }

    fn rate_limit_filter(&self) -> Value {
        let config = json!({
            "domain": "test",
            // a busy machine must not count as a failure of weir
            "timeout": "30s",
            "failure_mode_deny": self.deny_on_failure,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": { "envoy_grpc": { "cluster_name": "weir" } },
            },
        });
        filter("ratelimit", "ratelimit.v3.RateLimit", config)
    }
}

/// Returns an HTTP filter with its short name and type.
pub(crate) fn filter(name: &str, kind: &str, mut config: Value) -> Value {
    config["@type"] = format!("type.googleapis.com/envoy.extensions.filters.http.{kind}").into();
    json!({ "name": format!("envoy.filters.http.{name}"), "typed_config": config })
}

/// Returns a cluster of fixed addresses.
pub(crate) fn cluster(name: &str, endpoints: &Value) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": { "cluster_name": name, "endpoints": endpoints },
    })
}

/// Returns an endpoint of a cluster.
pub(crate) fn endpoint(socket: SocketAddr) -> Value {
    json!({ "endpoint": { "address": address(socket) } })
}

/// Returns a descriptor list of one entry, whose value is the request's `header`.
pub(crate) fn from_header(key: &str, header: &str) -> Value {
    json!({ "actions": [{ "request_headers": { "header_name": header, "descriptor_key": key } }] })
}

/// Returns a descriptor list of one fixed entry.
pub(crate) fn fixed(key: &str, value: &str) -> Value {
    json!({ "actions": [{ "generic_key": { "descriptor_key": key, "descriptor_value": value } }] })
}

fn address(socket: SocketAddr) -> Value {
    json!({ "socket_address": { "address": socket.ip().to_string(), "port_value": socket.port() } })
}
