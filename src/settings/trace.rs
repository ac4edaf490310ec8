//! Reads the variables of envoyproxy/ratelimit for traces, and those of OpenTelemetry for their export.
//!
//! Of OpenTelemetry's variables, one for traces (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) takes precedence over the one for all
//! signals (`OTEL_EXPORTER_OTLP_ENDPOINT`).
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>)

use std::{path::PathBuf, time::Duration};

use http::{HeaderName, HeaderValue, Uri};

use super::{
    backend::Backend,
    parse,
    reader::{Given, Reader},
};
use crate::{
    grpc_client::Target,
    tls::{ClientTls, ClientTlsNames},
    trace::{BatchSettings, Endpoint, ExportSettings, Protocol, TraceSettings, random_instance_id},
};

/// The most of `OTEL_BSP_MAX_QUEUE_SIZE`: a span has up to some ten kilobytes.
const MAX_QUEUE: usize = 1_000_000;

/// Reads the settings of traces, if they are on. Without `TRACING_ENABLED` no other variable has an effect, as in
/// envoyproxy/ratelimit; operators of Kubernetes set those of OpenTelemetry in many pods.
pub(super) fn trace(
    read: &mut Reader<'_>,
    backend: Backend,
    warnings: &mut Vec<String>,
) -> Option<TraceSettings> {
    let is_on = read.bool("TRACING_ENABLED");
    // parsed even without effect, so that typing errors in weir's own variable are reported
    let descriptor_values = read.bool("WEIR_TRACING_DESCRIPTOR_VALUES");
    if !is_on {
        if descriptor_values {
            warnings.push(
                "WEIR_TRACING_DESCRIPTOR_VALUES is set, but has no effect: TRACING_ENABLED is not set".into(),
            );
        }
        return None;
    }
    let protocol = protocol(read);
    let (endpoint, is_secure) = endpoint(read, protocol);
    Some(TraceSettings {
        resource: resource(read),
        sampling_rate: sampling_rate(read, warnings),
        descriptor_values,
        store: match backend {
            Backend::Memcached => "memcached",
            // in memory, nothing waits
            Backend::Redis | Backend::Memory | Backend::Disk => "redis",
        },
        export: ExportSettings {
            protocol,
            endpoint,
            tls: Some(tls(read)).filter(|_| is_secure),
            headers: headers(read),
            gzip: parsed_of_traces(read, "COMPRESSION", false, |text| match text {
                "gzip" => Ok(true),
                "none" => Ok(false),
                _ => Err("gzip or none"),
            }),
            timeout: parsed_of_traces(read, "TIMEOUT", Duration::from_secs(10), millis),
        },
        batch: batch(read, warnings),
    })
}

fn sampling_rate(read: &mut Reader<'_>, warnings: &mut Vec<String>) -> f64 {
    let rate: f64 = read.parsed("TRACING_SAMPLING_RATE", 1.0, |text| {
        let rate = text.parse().ok().filter(|rate: &f64| *rate >= 0.0 && rate.is_finite());
        rate.ok_or("a fraction of all requests from 0 to 1, such as 0.1")
    });
    if rate > 1.0 {
        warnings.push(format!(
            "TRACING_SAMPLING_RATE is {rate}, which counts as 1: it is a fraction of all requests, from 0 to 1"
        ));
    }
    rate.min(1.0)
}

fn protocol(read: &mut Reader<'_>) -> Protocol {
    let of_otel = parsed_of_traces(read, "PROTOCOL", Protocol::Http, |text| match text {
        "grpc" => Ok(Protocol::Grpc),
        "http/protobuf" => Ok(Protocol::Http),
        _ => Err("grpc or http/protobuf"),
    });
    read.parsed("TRACING_EXPORTER_PROTOCOL", of_otel, |text| match text {
        "grpc" => Ok(Protocol::Grpc),
        "http" => Ok(Protocol::Http),
        _ => Err("http or grpc"),
    })
}

/// Returns the collector's address, and whether its connections are encrypted.
fn endpoint(read: &mut Reader<'_>, protocol: Protocol) -> (Endpoint, bool) {
    let expected = match protocol {
        Protocol::Http => "a URL such as http://collector:4318 or https://collector:4318",
        Protocol::Grpc => "a URL such as http://collector:4317 or https://collector:4317, or host:port",
    };
    let is_insecure = parsed_of_traces(read, "INSECURE", false, parse::bool);
    let (port, default) = match protocol {
        Protocol::Http => (4318, "/v1/traces"),
        Protocol::Grpc => (4317, ""),
    };
    let localhost = Endpoint {
        target: Target::Tcp("localhost".into(), port),
        authority: format!("localhost:{port}"),
        path: default.into(),
    };
    // as in envoyproxy/ratelimit, and other than in OpenTelemetry's specification, the default is TLS
    let localhost = (localhost, !is_insecure);
    let parse = |text: &str, below: &str| {
        let parsed = parse_endpoint(text, protocol, below, is_insecure);
        parsed.ok_or(expected)
    };
    let of_traces = read.given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").is_some();
    if of_traces {
        // used as it is
        return read.parsed("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", localhost, |text| parse(text, ""));
    }
    read.parsed("OTEL_EXPORTER_OTLP_ENDPOINT", localhost, |text| parse(text, default))
}

/// Parses a URL, or for gRPC also `host:port`. Appends `below` to its path.
fn parse_endpoint(
    text: &str,
    protocol: Protocol,
    below: &str,
    is_insecure: bool,
) -> Option<(Endpoint, bool)> {
    if !text.contains("://") {
        let target = Target::parse(text).filter(|_| protocol == Protocol::Grpc)?;
        return Some((Endpoint { target, authority: text.to_owned(), path: String::new() }, !is_insecure));
    }
    let url: Uri = text.parse().ok()?;
    let (is_secure, port) = match url.scheme_str()? {
        "http" => (false, 80),
        "https" => (true, 443),
        _ => return None,
    };
    let authority = url.authority()?;
    let host = authority.host();
    // a user and a password would precede the host
    let port = match authority.as_str().strip_prefix(host)? {
        "" => port,
        rest => rest.strip_prefix(':')?.parse().ok()?,
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let path = url.path().trim_end_matches('/');
    if url.query().is_some()
        || host.is_empty()
        || port == 0
        || (protocol == Protocol::Grpc && !path.is_empty())
    {
        return None;
    }
    let path = match format!("{path}{below}") {
        path if path.is_empty() && protocol == Protocol::Http => "/".to_owned(),
        path => path,
    };
    let target = Target::Tcp(host.to_owned(), port);
    Some((Endpoint { target, authority: authority.as_str().to_owned(), path }, is_secure))
}

/// Returns the TLS of the exporter, and the variables that its files come from.
fn tls(read: &mut Reader<'_>) -> (ClientTls, ClientTlsNames) {
    const CA: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
    const CLIENT: [&str; 2] =
        ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"];
    const KEY: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY"];
    let first = |variables: [&'static str; 2]| {
        let given = variables.into_iter().find_map(|variable| Some((variable, read.given(variable)?)));
        given.map_or((variables[1], None), |(variable, given)| (variable, Some(given)))
    };
    let ((ca_name, ca), (certificate, chain), (key_name, key)) = (first(CA), first(CLIENT), first(KEY));
    let path = |given: Given| PathBuf::from(given.value);
    let client = match (chain, key) {
        (Some(chain), Some(key)) => Some((path(chain), path(key))),
        (None, None) => None,
        (Some(chain), None) => {
            read.reject(chain, format!("set together with {key_name}"));
            None
        }
        (None, Some(key)) => {
            read.reject(key, format!("set together with {certificate}"));
            None
        }
    };
    let names = ClientTlsNames { ca: ca_name, certificate, key: key_name };
    (ClientTls { ca: ca.map(path), client, any_name: false }, names)
}

fn headers(read: &mut Reader<'_>) -> Vec<(HeaderName, HeaderValue)> {
    const EXPECTED: &str = "headers such as x-token=abc,x-region=eu, with values in percent-encoding";
    parsed_of_traces(read, "HEADERS", Vec::new(), |text| {
        let header = |(name, value): (String, String)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            // gRPC reserves these, and binary ones need another encoding
            let is_reserved = name.as_str().starts_with("grpc-") || name.as_str().ends_with("-bin");
            Some((name, HeaderValue::from_str(&value).ok()?)).filter(|_| !is_reserved)
        };
        let headers = encoded_pairs(text).and_then(|pairs| pairs.into_iter().map(header).collect());
        headers.ok_or(EXPECTED)
    })
}

/// Returns the attributes of this instance: those of `TRACING_SERVICE_*` take precedence.
fn resource(read: &mut Reader<'_>) -> Vec<(String, String)> {
    let attributes = read.parsed("OTEL_RESOURCE_ATTRIBUTES", Vec::new(), |text| {
        let expected = "attributes such as deployment.environment=prod,k8s.pod.name=weir-0, with values in \
                        percent-encoding";
        encoded_pairs(text).ok_or(expected)
    });
    let of_otel = attributes.iter().find(|(name, _)| name == "service.name").map(|(_, value)| value.clone());
    let name = read.text("OTEL_SERVICE_NAME", of_otel.as_deref().unwrap_or("RateLimit"));
    let mut resource = vec![("service.name".to_owned(), read.text("TRACING_SERVICE_NAME", &name))];
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            resource.push((name.to_owned(), value));
        }
    };
    add("service.namespace", read.text("TRACING_SERVICE_NAMESPACE", ""));
    let given = attributes.iter().find(|(name, _)| name == "service.instance.id");
    let instance = given.map_or_else(random_instance_id, |(_, value)| value.clone());
    add("service.instance.id", read.text("TRACING_SERVICE_INSTANCE_ID", &instance));
    let version = ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    for (name, value) in attributes.into_iter().chain([version]) {
        if resource.iter().all(|(existing, _)| *existing != name) {
            resource.push((name, value));
        }
    }
    resource
}

fn batch(read: &mut Reader<'_>, warnings: &mut Vec<String>) -> BatchSettings {
    let mut spans = |variable: &str, default: usize| {
        read.parsed(variable, default, |text| {
            let spans = text.parse().ok().filter(|spans| (1..=MAX_QUEUE).contains(spans));
            spans.ok_or("a number of spans, from 1 to 1000000")
        })
    };
    let queue = spans("OTEL_BSP_MAX_QUEUE_SIZE", 2_048);
    let export = spans("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512);
    if export > queue && read.given("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").is_some() {
        warnings.push(format!(
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {export}, which counts as {queue}: it is at most OTEL_BSP_MAX_QUEUE_SIZE"
        ));
    }
    BatchSettings {
        queue,
        export: export.min(queue),
        delay: read.parsed("OTEL_BSP_SCHEDULE_DELAY", Duration::from_secs(5), millis),
        timeout: read.parsed("OTEL_BSP_EXPORT_TIMEOUT", Duration::from_secs(30), millis),
    }
}

/// Reads the variable of OTLP that ends in `name`: the one for traces, else the one for all signals.
fn parsed_of_traces<T>(
    read: &mut Reader<'_>,
    name: &str,
    default: T,
    parse: impl FnOnce(&str) -> Result<T, &'static str>,
) -> T {
    let traces = format!("OTEL_EXPORTER_OTLP_TRACES_{name}");
    let variable = if read.given(&traces).is_some() { traces } else { format!("OTEL_EXPORTER_OTLP_{name}") };
    read.parsed(&variable, default, parse)
}

/// Parses a number of milliseconds.
fn millis(text: &str) -> Result<Duration, &'static str> {
    let millis = text.parse().ok().filter(|millis: &u64| (1..=86_400_000).contains(millis));
    millis.map(Duration::from_millis).ok_or("a number of milliseconds, at least 1, such as 10000")
}

/// Parses `k1=v1,k2=v2`, whose names and values are in percent-encoding.
fn encoded_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let (name, value) = (percent_decoded(name.trim())?, percent_decoded(value.trim())?);
        (!name.is_empty()).then_some((name, value))
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(pair).collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut decoded = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let value = digit(bytes.next()?)? << 4 | digit(bytes.next()?)?;
            decoded.push(u8::try_from(value).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests;
