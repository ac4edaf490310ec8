//! An export says the same as the page.

use opentelemetry_proto::tonic::{common::v1::any_value::Value, metrics::v1::AggregationTemporality};
use weir_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::{
    in_process::{Weir, replace, until},
    page::{Page, temporality},
    receiver::Receiver,
    wire::{descriptor, request},
};

pub(crate) const RULES: &str = "domain: shop
descriptors:
  - key: tenant
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: plan
    value: \"fr\\\"ee\"
    rate_limit: { unit: day, requests_per_unit: 1000 }
";

pub(crate) const HITS: &str = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"tenant\"}";

/// Starts a weir that sends its metrics often.
pub(crate) async fn weir(protocol: &str, receiver: &Receiver, variables: &[(&str, &str)]) -> Weir {
    let endpoint = format!("http://{}", receiver.address);
    let protocol = if protocol == "grpc" { "grpc" } else { "http/protobuf" };
    let own = [
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
    ];
    Weir::start_with(RULES, &[&own, variables].concat()).await
}

pub(crate) fn tenant() -> RateLimitRequest {
    request("shop", [descriptor([("tenant", "acme")])])
}

/// Checks that an export has the series of the pages before and after it, and their values where these are equal.
async fn is_the_same(weir: &Weir, receiver: &Receiver) -> Page {
    let before = Page::of_weir(weir).await.with_values();
    let export = Page::of_export(&receiver.next().await);
    let after = Page::of_weir(weir).await;
    assert_eq!(before.types, export.types);
    assert_eq!(before.help, export.help);
    let names = |page: &Page| page.values.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after), "nothing else has happened");
    assert_eq!(names(&before), names(&export));
    let mut steady = 0;
    for (series, value) in &before.values {
        // the page is a connection, and other tests are in this process
        let is_own = !series.starts_with("weir_connections_") && !series.starts_with("process_");
        if is_own && after.value(series) == Some(*value) {
            steady += 1;
            assert_eq!(export.value(series), Some(*value), "{series}");
        }
    }
    assert!(steady * 3 >= before.values.len() * 2, "{steady} of {} series", before.values.len());
    export
}

#[tokio::test]
async fn an_export_has_the_series_and_the_values_of_the_page() {
    for protocol in ["grpc", "http"] {
        let receiver = Receiver::start(protocol).await;
        let mut weir = weir(protocol, &receiver, &[]).await;
        for _ in 0..3 {
            weir.decide(tenant()).await;
        }
        weir.decide(request("shop", [descriptor([("plan", "fr\"ee")])])).await;
        let export = is_the_same(&weir, &receiver).await;
        assert_eq!(export.value(HITS), Some(3.0));
        let count = "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}";
        assert_eq!(export.value(count), Some(4.0));
        assert_eq!(export.types["ratelimit_service_response_time_seconds"], "histogram");
        let last = receiver.received().pop().expect("an export");
        for metric in last.metrics() {
            let temporality = temporality(metric);
            assert!(temporality.is_none_or(|is| is == AggregationTemporality::Cumulative), "{}", metric.name);
            let unit =
                ["_seconds", "_seconds_total", "_bytes"].into_iter().any(|end| metric.name.ends_with(end));
            assert_eq!(unit, !metric.unit.is_empty(), "{}: {}", metric.name, metric.unit);
        }
    }
}

#[tokio::test]
async fn metrics_with_names_of_a_mapper_file_are_the_same() {
    let receiver = Receiver::start("http").await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("mapper.yaml");
    let mapper = "mappings:
  - match: ratelimit.service.rate_limit.*.*.total_hits
    name: job_hits
    labels: { domain: $1, rule: $2 }
  - match: ratelimit_server.*.response_time
    name: took
    match_metric_type: observer
    labels: { method: $1 }
    histogram_options: { buckets: [0.1, 1000] }
";
    std::fs::write(&file, mapper).expect("a file");
    let variables = [("PROMETHEUS_MAPPER_YAML", file.to_str().expect("a plain path"))];
    let mut weir = weir("http", &receiver, &variables).await;
    weir.decide(tenant()).await;
    let export = is_the_same(&weir, &receiver).await;
    assert_eq!(export.value("job_hits{domain=\"shop\",rule=\"tenant\"}"), Some(1.0), "{:?}", export.values);
}

#[tokio::test]
async fn a_series_that_is_no_longer_shown_is_no_longer_sent() {
    const LIMIT: &str = "weir_rule_limit{domain=\"shop\",key1=\"tenant\",per=\"1h\"}";
    let receiver = Receiver::start("grpc").await;
    let weir = weir("grpc", &receiver, &[]).await;
    until("the limit", async || Page::of_export(&receiver.next().await).value(LIMIT) == Some(2.0)).await;
    replace(&weir.file(), "domain: shop\ndescriptors: []\n");
    until("no limit", async || Page::of_weir(&weir).await.value(LIMIT).is_none()).await;
    let export = is_the_same(&weir, &receiver).await;
    assert_eq!(export.value(LIMIT), None);
}

#[tokio::test]
async fn exports_have_the_headers_and_the_resource_of_the_settings() {
    for protocol in ["grpc", "http"] {
        let receiver = Receiver::start(protocol).await;
        let variables = [
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "authorization=Bearer%20t"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip"),
            ("TRACING_SERVICE_NAME", "limits"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=prod"),
        ];
        let _weir = weir(protocol, &receiver, &variables).await;
        let export = receiver.next().await;
        assert_eq!(export.headers["authorization"], "Bearer t");
        let encoding = if protocol == "grpc" { "grpc-encoding" } else { "content-encoding" };
        assert_eq!(export.headers[encoding], "gzip");
        assert_eq!(export.path, if protocol == "grpc" { "" } else { "/v1/metrics" });
        let resource = export.message.resource_metrics[0].resource.as_ref().expect("a resource");
        for (name, value) in [("service.name", "limits"), ("deployment.environment", "prod")] {
            let attribute = resource.attributes.iter().find(|attribute| attribute.key == name);
            let text = attribute.and_then(|attribute| attribute.value.as_ref()?.value.clone());
            assert_eq!(text, Some(Value::StringValue(value.into())), "{name}");
        }
    }
}
