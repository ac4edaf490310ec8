use std::time::Duration;

use weir_net::grpc_client::Address;

use super::*;
use crate::settings::resolve::tests::resolve;

fn traced(variables: &[(&str, &str)]) -> TraceSettings {
    let on = [("TRACING_ENABLED", "true")];
    resolve(&[&on, variables].concat()).expect("valid settings").trace.expect("traces are on")
}

fn attribute<'a>(settings: &'a TraceSettings, name: &str) -> Option<&'a str> {
    settings.resource.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

#[test]
fn traces_are_off_by_default_whatever_opentelemetrys_variables_say() {
    let settings = resolve(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "what?"), ("OTEL_BSP_SCHEDULE_DELAY", "x")]);
    assert!(settings.expect("they have no effect").trace.is_none());
    let settings = resolve(&[("WEIR_TRACING_DESCRIPTOR_VALUES", "true")]).expect("no error");
    assert!(settings.warnings.iter().any(|warning| warning.contains("WEIR_TRACING_DESCRIPTOR_VALUES")));
}

#[test]
fn the_defaults_are_those_of_envoyproxy_ratelimit() {
    let settings = traced(&[]);
    assert_eq!(settings.export.protocol, OtlpProtocol::Http);
    assert_eq!(settings.export.endpoint.target, Address::Tcp("localhost".into(), 4318));
    assert_eq!(settings.export.endpoint.path, "/v1/traces");
    assert!(settings.export.tls.is_some() && !settings.export.gzip && settings.export.headers.is_empty());
    assert_eq!(settings.export.timeout, Duration::from_secs(10));
    let batch = BatchSettings {
        queue: 2_048,
        export: 512,
        delay: Duration::from_secs(5),
        timeout: Duration::from_secs(30),
    };
    assert_eq!(settings.batch, batch);
    assert!((settings.sampling_rate - 1.0).abs() < f64::EPSILON && !settings.descriptor_values);
    assert_eq!(attribute(&settings, "service.name"), Some("RateLimit"));
    assert_eq!(attribute(&settings, "service.namespace"), None);
    assert_eq!(attribute(&settings, "service.instance.id").map(str::len), Some(36));
}

#[test]
fn the_environment_of_envoy_gateway_sends_traces_over_http() {
    let settings = traced(&[
        ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
        ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
        ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-0"),
        ("TRACING_SAMPLING_RATE", "0.6"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://trace-collector.envoy-gateway-system.svc.cluster.local:4318"),
    ]);
    assert_eq!(settings.export.protocol, OtlpProtocol::Http);
    assert!(settings.export.tls.is_none());
    let endpoint = &settings.export.endpoint;
    assert_eq!(endpoint.authority, "trace-collector.envoy-gateway-system.svc.cluster.local:4318");
    assert_eq!(endpoint.path, "/v1/traces");
    assert_eq!(attribute(&settings, "service.name"), Some("envoy-ratelimit"));
    assert_eq!(attribute(&settings, "service.namespace"), Some("envoy-gateway-system"));
    assert_eq!(attribute(&settings, "service.instance.id"), Some("envoy-ratelimit-0"));
}

#[test]
fn the_endpoint_for_traces_is_used_as_it_is_and_the_general_one_is_a_base() {
    const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let endpoint = |variables: &[(&str, &str)]| {
        let export = traced(variables).export;
        (export.endpoint.target, export.endpoint.path, export.tls.is_some())
    };
    let grpc = ("TRACING_EXPORTER_PROTOCOL", "grpc");
    let is = |host: &str, port, path: &str, tls| (Address::tcp(host, port), path.to_owned(), tls);
    assert_eq!(endpoint(&[(ALL, "http://a:4318/")]), is("a", 4318, "/v1/traces", false));
    assert_eq!(endpoint(&[(ALL, "https://a/otlp/")]), is("a", 443, "/otlp/v1/traces", true));
    assert_eq!(endpoint(&[(TRACES, "http://b/x"), (ALL, "http://a")]), is("b", 80, "/x", false));
    assert_eq!(endpoint(&[(TRACES, "http://b")]), is("b", 80, "/", false));
    assert_eq!(endpoint(&[grpc]), is("localhost", 4317, "", true));
    assert_eq!(endpoint(&[grpc, (ALL, "http://[::1]:4317")]), is("::1", 4317, "", false));
    assert_eq!(endpoint(&[grpc, (ALL, "https://a:4317/")]), is("a", 4317, "", true));
    // without a scheme, another variable says whether to encrypt
    let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
    assert_eq!(endpoint(&[grpc, (ALL, "a:4317")]), is("a", 4317, "", true));
    assert_eq!(endpoint(&[grpc, insecure, (ALL, "a:4317")]), is("a", 4317, "", false));
    assert_eq!(endpoint(&[insecure]), is("localhost", 4318, "/v1/traces", false));
}

#[test]
fn a_variable_for_traces_takes_precedence() {
    let settings = traced(&[
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=1"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-b=2, authorization=Bearer%20t%3D"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2500"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
    ]);
    let headers: Vec<_> =
        settings.export.headers.iter().map(|(name, value)| (name.as_str(), value)).collect();
    assert_eq!(
        headers,
        [("x-b", &"2".parse().expect("a value")), ("authorization", &"Bearer t=".parse().expect("a value"))]
    );
    assert_eq!(settings.export.timeout, Duration::from_millis(2_500));
    assert!(settings.export.gzip);
    assert_eq!(settings.export.protocol, OtlpProtocol::Grpc);
    // the variable of envoyproxy/ratelimit takes precedence over those of OpenTelemetry
    let settings = traced(&[("TRACING_EXPORTER_PROTOCOL", "http"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
    assert_eq!(settings.export.protocol, OtlpProtocol::Http);
}

#[test]
fn the_files_of_tls_name_their_variables() {
    let settings = traced(&[
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "/cert"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key"),
    ]);
    let (tls, names) = settings.export.tls.expect("https by default");
    assert_eq!(tls.ca, Some("/ca".into()));
    assert_eq!(tls.client, Some(("/cert".into(), "/key".into())));
    assert_eq!(names.certificate, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE");
    assert_eq!(names.ca, "OTEL_EXPORTER_OTLP_CERTIFICATE");
}

#[test]
fn resource_attributes_give_way_to_those_of_tracing_service() {
    let attributes = "deployment.environment=prod,team=a%2Cb,service.name=x,service.instance.id=i-1";
    let settings = traced(&[("OTEL_RESOURCE_ATTRIBUTES", attributes)]);
    assert_eq!(attribute(&settings, "deployment.environment"), Some("prod"));
    assert_eq!(attribute(&settings, "team"), Some("a,b"));
    assert_eq!(attribute(&settings, "service.name"), Some("x"));
    assert_eq!(attribute(&settings, "service.instance.id"), Some("i-1"));
    let otel = ("OTEL_SERVICE_NAME", "y");
    let settings = traced(&[("OTEL_RESOURCE_ATTRIBUTES", attributes), otel]);
    assert_eq!(attribute(&settings, "service.name"), Some("y"));
    let settings = traced(&[("OTEL_RESOURCE_ATTRIBUTES", attributes), otel, ("TRACING_SERVICE_NAME", "z")]);
    assert_eq!(attribute(&settings, "service.name"), Some("z"));
    let names = settings.resource.iter().filter(|(name, _)| name == "service.name");
    assert_eq!(names.count(), 1);
}

#[test]
fn invalid_values_are_errors_that_say_what_would_be_right() {
    let key = ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key");
    for (name, value, expected) in [
        ("TRACING_EXPORTER_PROTOCOL", "thrift", "http or grpc"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "grpc or http/protobuf"),
        ("TRACING_SAMPLING_RATE", "half", "a fraction of all requests from 0 to 1, such as 0.1"),
        ("TRACING_SAMPLING_RATE", "-0.1", "a fraction of all requests from 0 to 1, such as 0.1"),
        ("TRACING_SAMPLING_RATE", "NaN", "a fraction of all requests from 0 to 1, such as 0.1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "a URL such as http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://collector:4318", "a URL such as"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://:4318", "a URL such as"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:x", "a URL such as"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:99999", "a URL such as"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@a", "a URL such as"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a/v1/traces?x=1", "a URL such as"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "token", "headers such as x-token=abc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c", "headers such as"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=%0a", "headers such as"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=%", "headers such as"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "grpc-timeout=1s", "headers such as"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "a number of milliseconds"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip or none"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "maybe", "true or false"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert", "set together with OTEL_EXPORTER_OTLP_CLIENT_KEY"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "a number of spans, from 1 to 1000000"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1", "a number of spans"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0", "a number of milliseconds, at least 1"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1m", "a number of milliseconds"),
        ("OTEL_RESOURCE_ATTRIBUTES", "prod", "attributes such as deployment.environment=prod"),
    ] {
        let errors = resolve(&[("TRACING_ENABLED", "true"), (name, value)]).expect_err(name).0;
        let [error] = errors.as_slice() else { panic!("one error: {errors:?}") };
        let is_right = error.starts_with(name) && error.contains(&format!("must be {expected}"));
        assert!(is_right, "{name}={value}: {error}");
    }
    assert!(resolve(&[("TRACING_ENABLED", "true"), key]).is_err());
}

#[test]
fn values_past_their_range_that_envoyproxy_ratelimit_accepts_are_warnings() {
    let settings = resolve(&[
        ("TRACING_ENABLED", "true"),
        ("TRACING_SAMPLING_RATE", "100"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "200"),
    ])
    .expect("valid settings");
    let trace = settings.trace.expect("traces are on");
    assert!((trace.sampling_rate - 1.0).abs() < f64::EPSILON);
    assert_eq!((trace.batch.queue, trace.batch.export), (100, 100));
    for name in ["TRACING_SAMPLING_RATE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] {
        assert!(settings.warnings.iter().any(|warning| warning.starts_with(name)), "{name}");
    }
}
