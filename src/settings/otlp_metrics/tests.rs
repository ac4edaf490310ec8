use std::time::Duration;

use weir_export::otlp::OtlpProtocol;
use weir_net::grpc_client::Address;

use super::*;
use crate::settings::resolve::tests::resolve;

const ON: (&str, &str) = ("OTEL_METRICS_EXPORTER", "otlp");

fn exported(variables: &[(&str, &str)]) -> MetricSettings {
    resolve(&[&[ON], variables].concat()).expect("valid settings").otlp_metrics.expect("metrics are exported")
}

#[test]
fn metrics_are_exported_only_if_the_variable_says_so() {
    let bad = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "what?");
    for (value, is_on, warns) in [
        ("none", false, false),
        ("prometheus", false, false),
        ("console", false, true),
        ("otlp", true, false),
        ("console, otlp", true, true),
    ] {
        let settings = resolve(&[("OTEL_METRICS_EXPORTER", value)]).expect("valid settings");
        assert_eq!(settings.otlp_metrics.is_some(), is_on, "{value}");
        let warned = settings.warnings.iter().any(|warning| warning.contains("\"console\""));
        assert_eq!(warned, warns, "{value}");
    }
    assert!(resolve(&[bad]).expect("it has no effect").otlp_metrics.is_none());
    assert!(resolve(&[ON, bad]).is_err());
    // traces do not switch them on
    assert!(resolve(&[("TRACING_ENABLED", "true")]).expect("valid settings").otlp_metrics.is_none());
}

#[test]
fn the_defaults_are_those_of_opentelemetry() {
    let settings = exported(&[]);
    assert_eq!(settings.interval, Duration::from_mins(1));
    assert_eq!(settings.timeout, Duration::from_secs(30));
    assert_eq!(settings.temporality, Temporality::Cumulative);
    assert_eq!(settings.export.protocol, OtlpProtocol::Http);
    assert_eq!(settings.export.endpoint.path, "/v1/metrics");
    assert_eq!(settings.export.endpoint.target, Address::Tcp("localhost".into(), 4318));
    assert_eq!(settings.export.timeout, Duration::from_secs(10));
}

#[test]
fn variables_of_metrics_take_precedence_and_those_of_traces_have_no_effect() {
    let settings = exported(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://a:1"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://b:2/x"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:3/y"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=1"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-b=2"),
        ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "7"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "DELTA"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "2500"),
    ]);
    let endpoint = settings.export.endpoint;
    assert_eq!((endpoint.target, &*endpoint.path), (Address::Tcp("b".into(), 2), "/x"));
    assert!(settings.export.gzip && settings.export.tls.is_none());
    assert_eq!(settings.export.headers.len(), 1);
    assert_eq!(settings.export.headers[0].0, "x-b");
    assert_eq!(settings.export.timeout, Duration::from_secs(10));
    assert_eq!(settings.temporality, Temporality::Delta);
    assert_eq!(settings.interval, Duration::from_secs(5));
    assert_eq!(settings.timeout, Duration::from_millis(2_500));
    let files =
        [("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/ca"), ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/other")];
    let (tls, names) = exported(&files).export.tls.expect("https by default");
    assert_eq!((tls.ca, names.ca), (Some("/ca".into()), "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE"));
}

#[test]
fn metrics_and_traces_come_from_one_instance() {
    let settings = resolve(&[ON, ("TRACING_ENABLED", "true"), ("TRACING_SERVICE_NAME", "limits")]);
    let settings = settings.expect("valid settings");
    assert_eq!(settings.trace.expect("traces").resource, settings.otlp_metrics.expect("metrics").resource);
}

#[test]
fn invalid_values_are_errors_that_say_what_would_be_right() {
    for (name, value, expected) in [
        ("OTEL_METRIC_EXPORT_INTERVAL", "0", "a number of milliseconds"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "1m", "a number of milliseconds"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "sometimes", "cumulative, delta or lowmemory"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json", "grpc or http/protobuf"),
        // of all signals: one error
        ("OTEL_EXPORTER_OTLP_HEADERS", "token", "headers such as"),
    ] {
        let errors = resolve(&[ON, ("TRACING_ENABLED", "true"), (name, value)]).expect_err(name).0;
        let [error] = errors.as_slice() else { panic!("one error: {errors:?}") };
        let is_right = error.starts_with(name) && error.contains(&format!("must be {expected}"));
        assert!(is_right, "{name}={value}: {error}");
    }
}
