//! Reads OpenTelemetry's variables for the export of a signal: of traces, or of metrics.
//!
//! A variable for one signal (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) takes precedence over the one for all signals
//! (`OTEL_EXPORTER_OTLP_ENDPOINT`).
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>)

use std::{path::PathBuf, time::Duration};

use http::{HeaderName, HeaderValue, Uri};
use weir_export::otlp::{Endpoint, ExportSettings, OtlpProtocol};
use weir_net::{
    grpc_client::Target,
    tls::{ClientTls, ClientTlsNames},
};

use super::{
    parse,
    reader::{Given, SettingReader},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
}

// === impl Signal ===

impl Signal {
    fn variable(self, name: &str) -> String {
        match self {
            Self::Traces => format!("OTEL_EXPORTER_OTLP_TRACES_{name}"),
            Self::Metrics => format!("OTEL_EXPORTER_OTLP_METRICS_{name}"),
        }
    }

    /// The path below an endpoint for all signals.
    fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }

    /// Returns the variables of authorities, certificates and keys: this signal's, and the one for all.
    fn files(self) -> [[&'static str; 2]; 3] {
        const CA: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
        const CLIENT: &str = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE";
        const KEY: &str = "OTEL_EXPORTER_OTLP_CLIENT_KEY";
        match self {
            Self::Traces => [
                ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", CA],
                ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", CLIENT],
                ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", KEY],
            ],
            Self::Metrics => [
                ["OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", CA],
                ["OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE", CLIENT],
                ["OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", KEY],
            ],
        }
    }

    fn parsed<T>(
        self,
        read: &mut SettingReader<'_>,
        name: &str,
        default: T,
        parse: impl FnOnce(&str) -> Result<T, &'static str>,
    ) -> T {
        let own = self.variable(name);
        let variable = if read.given(&own).is_some() { own } else { format!("OTEL_EXPORTER_OTLP_{name}") };
        read.parsed(&variable, default, parse)
    }
}

pub(super) fn protocol(read: &mut SettingReader<'_>, signal: Signal) -> OtlpProtocol {
    signal.parsed(read, "PROTOCOL", OtlpProtocol::Http, |text| match text {
        "grpc" => Ok(OtlpProtocol::Grpc),
        "http/protobuf" => Ok(OtlpProtocol::Http),
        _ => Err("grpc or http/protobuf"),
    })
}

pub(super) fn export(
    read: &mut SettingReader<'_>,
    signal: Signal,
    protocol: OtlpProtocol,
    warnings: &mut Vec<String>,
) -> ExportSettings {
    let (endpoint, is_secure) = endpoint(read, signal, protocol);
    if !is_secure {
        let not_encrypted =
            "connections to the collector are in plain text: its endpoint does not begin with https://";
        let not_encrypted = super::tls::in_plain_text(read, &signal.files().concat(), not_encrypted);
        // a variable for several signals is read for each
        let new: Vec<_> = not_encrypted.into_iter().filter(|warning| !warnings.contains(warning)).collect();
        warnings.extend(new);
    }
    ExportSettings {
        protocol,
        endpoint,
        tls: Some(tls(read, signal)).filter(|_| is_secure),
        headers: headers(read, signal),
        gzip: signal.parsed(read, "COMPRESSION", false, |text| match text {
            "gzip" => Ok(true),
            "none" => Ok(false),
            _ => Err("gzip or none"),
        }),
        timeout: signal.parsed(read, "TIMEOUT", Duration::from_secs(10), millis),
    }
}

/// Also returns whether connections to the collector are encrypted.
fn endpoint(read: &mut SettingReader<'_>, signal: Signal, protocol: OtlpProtocol) -> (Endpoint, bool) {
    let expected = match protocol {
        OtlpProtocol::Http => "a URL such as http://collector:4318 or https://collector:4318",
        OtlpProtocol::Grpc => "a URL such as http://collector:4317 or https://collector:4317, or host:port",
    };
    let is_insecure = signal.parsed(read, "INSECURE", false, parse::bool);
    let (port, default) = match protocol {
        OtlpProtocol::Http => (4318, signal.path()),
        OtlpProtocol::Grpc => (4317, ""),
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
    let own = signal.variable("ENDPOINT");
    if read.given(&own).is_some() {
        // used as it is
        return read.parsed(&own, localhost, |text| parse(text, ""));
    }
    read.parsed("OTEL_EXPORTER_OTLP_ENDPOINT", localhost, |text| parse(text, default))
}

/// A URL, or for gRPC also `host:port`. Appends `below` to its path.
fn parse_endpoint(
    text: &str,
    protocol: OtlpProtocol,
    below: &str,
    is_insecure: bool,
) -> Option<(Endpoint, bool)> {
    if !text.contains("://") {
        let target = Target::parse(text).filter(|_| protocol == OtlpProtocol::Grpc)?;
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
        || (protocol == OtlpProtocol::Grpc && !path.is_empty())
    {
        return None;
    }
    let path = match format!("{path}{below}") {
        path if path.is_empty() && protocol == OtlpProtocol::Http => "/".to_owned(),
        path => path,
    };
    let target = Target::Tcp(host.to_owned(), port);
    Some((Endpoint { target, authority: authority.as_str().to_owned(), path }, is_secure))
}

fn tls(read: &mut SettingReader<'_>, signal: Signal) -> (ClientTls, ClientTlsNames) {
    let [ca, client, key] = signal.files();
    let first = |variables: [&'static str; 2]| {
        let given = variables.into_iter().find_map(|variable| Some((variable, read.given(variable)?)));
        given.map_or((variables[1], None), |(variable, given)| (variable, Some(given)))
    };
    let ((ca_name, ca), (certificate, chain), (key_name, key)) = (first(ca), first(client), first(key));
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

fn headers(read: &mut SettingReader<'_>, signal: Signal) -> Vec<(HeaderName, HeaderValue)> {
    const EXPECTED: &str = "headers such as x-token=abc,x-region=eu, with values in percent-encoding";
    signal.parsed(read, "HEADERS", Vec::new(), |text| {
        let header = |(name, value): (String, String)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            // gRPC reserves these, and binary ones need another encoding
            let is_reserved = name.as_str().starts_with("grpc-") || name.as_str().ends_with("-bin");
            let mut value = HeaderValue::from_str(&value).ok()?;
            // usually a token: no debug output shows it, and no table of HPACK keeps it
            value.set_sensitive(true);
            Some((name, value)).filter(|_| !is_reserved)
        };
        let headers = encoded_pairs(text).and_then(|pairs| pairs.into_iter().map(header).collect());
        headers.ok_or(EXPECTED)
    })
}

/// The attributes of this instance. `TRACING_SERVICE_*` takes precedence; `instance` is the id if none is given.
pub(super) fn resource(read: &mut SettingReader<'_>, instance: &str) -> Vec<(String, String)> {
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
    let instance = given.map_or(instance, |(_, value)| value);
    add("service.instance.id", read.text("TRACING_SERVICE_INSTANCE_ID", instance));
    let version = ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    for (name, value) in attributes.into_iter().chain([version]) {
        if resource.iter().all(|(existing, _)| *existing != name) {
            resource.push((name, value));
        }
    }
    resource
}

pub(super) fn millis(text: &str) -> Result<Duration, &'static str> {
    let millis = text.parse().ok().filter(|millis: &u64| (1..=86_400_000).contains(millis));
    millis.map(Duration::from_millis).ok_or("a number of milliseconds, at least 1, such as 10000")
}

/// `k1=v1,k2=v2`, whose names and values are in percent-encoding.
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
