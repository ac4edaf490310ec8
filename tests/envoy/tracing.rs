//! One trace through Envoy and weir, as both report it to one collector.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    collector::{Collector, attribute, hex},
    support::{
        Stack,
        bootstrap::{Bootstrap, cluster, endpoint, from_header},
    },
};

const RULES: &str = "  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1 }
";

/// Adds an OpenTelemetry tracer to `bootstrap`, which sends every trace to `collector`.
fn traced(bootstrap: &Bootstrap, weir: SocketAddr, collector: SocketAddr) -> Value {
    let mut json = bootstrap.to_json(weir);
    let mut cluster = cluster("collector", &json!([{ "lb_endpoints": [endpoint(collector)] }]));
    cluster["typed_extension_protocol_options"] =
        json["static_resources"]["clusters"][0]["typed_extension_protocol_options"].clone();
    json["static_resources"]["clusters"].as_array_mut().expect("a list").push(cluster);
    let manager = json
        .pointer_mut("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config")
        .expect("a connection manager");
    manager["tracing"] = json!({
        "random_sampling": { "value": 100 },
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "grpc_service": { "envoy_grpc": { "cluster_name": "collector" }, "timeout": "30s" },
                "service_name": "envoy",
            },
        },
    });
    json["layered_runtime"] = json!({ "layers": [{
        "name": "static",
        "static_layer": { "tracing.opentelemetry.min_flush_spans": 1, "tracing.opentelemetry.flush_interval_ms": 20 },
    }] });
    json
}

#[test]
fn weirs_span_continues_envoys() {
    let runtime = Runtime::new().expect("a runtime");
    let collector = runtime.block_on(Collector::grpc());
    let endpoint = format!("http://{}", collector.address);
    let settings = [
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        // only the traces of Envoy
        ("TRACING_SAMPLING_RATE", "0"),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    let limits = Bootstrap::limiting(json!([from_header("user", "x-user")]));
    let address = collector.address;
    let stack = Stack::with_settings_and_bootstrap(RULES, &settings, |weir| traced(&limits, weir, address));
    for status in [200, 429] {
        assert_eq!(stack.get_with("x-user", "alice").status, status);
    }
    // of each request: Envoy's own span, its call of weir, and weir's span
    let outcome = |outcome: &str| {
        let spans = collector.spans();
        let of_weir = spans
            .iter()
            .find(|span| attribute(&span.attributes, "weir.outcome").as_deref() == Some(outcome))?;
        let caller = spans.iter().find(|span| span.span_id == of_weir.parent_span_id)?;
        assert_eq!(hex(&caller.trace_id), hex(&of_weir.trace_id));
        Some((caller.name.clone(), of_weir.clone()))
    };
    for expected in ["OK", "OVER_LIMIT"] {
        let (caller, span) = crate::support::wait::until("both spans", || outcome(expected));
        assert!(caller.contains("ShouldRateLimit"), "{caller}");
        assert_eq!(attribute(&span.attributes, "weir.rules").as_deref(), Some("test.user"));
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
}
