//! A mapper file that maps what Envoy Gateway's own maps: rules of one and two levels, errors, calls, loads; the rest
//! is dropped.

use std::fmt::Write as _;

/// Returns the text of the file.
pub fn envoy_gateway_mapper() -> String {
    let mut text = "mappings:\n".to_owned();
    let mut add = |stat: &str, more: &str, name: &str, labels: &[&str]| {
        let groups = (1..).zip(labels).map(|(group, label)| format!("{label}: \"${group}\""));
        let labels = groups.collect::<Vec<_>>().join(", ");
        // writing to a string cannot fail
        let _ = writeln!(text, "- {{match: \"{stat}\", {more}, name: {name}, labels: {{{labels}}}}}");
    };
    let counter = "match_metric_type: counter";
    for stat in ["near_limit", "over_limit", "total_hits", "within_limit", "shadow_mode"] {
        let name = format!("ratelimit_service_rate_limit_{stat}");
        let histogram = "timer_type: histogram";
        // its file has no shadow mode of one level
        if stat != "shadow_mode" {
            add(&format!("ratelimit.service.rate_limit.*.*.{stat}"), histogram, &name, &["domain", "key1"]);
        }
        let labels = ["domain", "key1", "key2"];
        add(&format!("ratelimit.service.rate_limit.*.*.*.{stat}"), histogram, &name, &labels);
    }
    let errors = "ratelimit_service_should_rate_limit_error";
    add("ratelimit.service.call.should_rate_limit.*", counter, errors, &["err_type"]);
    let method = ["grpc_method"];
    add("ratelimit_server.*.total_requests", counter, "ratelimit_service_total_requests", &method);
    let times = "ratelimit_service_response_time_seconds";
    add("ratelimit_server.*.response_time", "timer_type: histogram", times, &method);
    for event in ["success", "error"] {
        let name = format!("config_load_{event}");
        add(&format!("ratelimit.service.{name}"), counter, &format!("ratelimit_service_{name}"), &[]);
    }
    add(".", "match_type: regex, action: drop", "dropped", &[]);
    text
}
