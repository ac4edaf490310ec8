//! Reads OpenTelemetry's variables for the export of a signal: of traces, or of metrics.
//!
//! A variable for one signal (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) takes precedence over the one for all signals
//! (`OTEL_EXPORTER_OTLP_ENDPOINT`).
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>)

use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use weir_export::otlp::{Endpoint, ExportSettings, OtlpProtocol};
use weir_net::{
    grpc_client::Address,
    tls::{ClientTls, ClientTlsNames},
};

use super::{parse, reader::SettingReader, table};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Traces,
    Metrics,
}

// === impl Signal ===

impl Signal {
    /// The variable of this signal, or that of all signals if it is not set.
    fn variable(self, read: &SettingReader<'_>, name: &str) -> &'static str {
        let of = if self == Self::Traces { "TRACES" } else { "METRICS" };
        let own = table::name(&format!("OTEL_EXPORTER_OTLP_{of}_{name}"));
        if read.is_given(own) { own } else { table::name(&format!("OTEL_EXPORTER_OTLP_{name}")) }
    }

    /// The path below an endpoint for all signals.
    fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }

    /// The names of the authorities, the certificate and the key.
    fn files(self, read: &SettingReader<'_>) -> [&'static str; 3] {
        ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"].map(|name| self.variable(read, name))
    }

    fn parsed<T>(
        self,
        read: &mut SettingReader<'_>,
        name: &str,
        parse: impl Fn(&str) -> Result<T, &'static str>,
    ) -> T {
        read.parsed(self.variable(read, name), parse)
    }
}

pub(super) fn protocol(read: &mut SettingReader<'_>, signal: Signal) -> OtlpProtocol {
    signal.parsed(read, "PROTOCOL", |text| match text {
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
        let not_encrypted = super::tls::in_plain_text(read, &signal.files(read), not_encrypted);
        // a variable for several signals is read for each
        let new: Vec<_> = not_encrypted.into_iter().filter(|warning| !warnings.contains(warning)).collect();
        warnings.extend(new);
    }
    ExportSettings {
        protocol,
        endpoint,
        tls: Some(tls(read, signal)).filter(|_| is_secure),
        headers: headers(read, signal),
        gzip: signal.parsed(read, "COMPRESSION", |text| match text {
            "gzip" => Ok(true),
            "none" => Ok(false),
            _ => Err("gzip or none"),
        }),
        timeout: signal.parsed(read, "TIMEOUT", millis),
    }
}

/// Also returns whether connections to the collector are encrypted.
fn endpoint(read: &mut SettingReader<'_>, signal: Signal, protocol: OtlpProtocol) -> (Endpoint, bool) {
    let expected = match protocol {
        OtlpProtocol::Http => "a URL such as http://collector:4318 or https://collector:4318",
        OtlpProtocol::Grpc => "a URL such as http://collector:4317 or https://collector:4317, or host:port",
    };
    let is_insecure = signal.parsed(read, "INSECURE", parse::bool);
    let (port, default) = match protocol {
        OtlpProtocol::Http => (4318, signal.path()),
        OtlpProtocol::Grpc => (4317, ""),
    };
    let localhost = Endpoint {
        target: Address::tcp("localhost", port),
        authority: format!("localhost:{port}"),
        path: default.into(),
    };
    // as in envoyproxy/ratelimit, and other than in OpenTelemetry's specification, the default is TLS
    let localhost = (localhost, !is_insecure);
    let variable = signal.variable(read, "ENDPOINT");
    // that of one signal is used as it is
    let below = if variable == "OTEL_EXPORTER_OTLP_ENDPOINT" { default } else { "" };
    let endpoint =
        read.optional(variable, |text| parse_endpoint(text, protocol, below, is_insecure).ok_or(expected));
    endpoint.unwrap_or(localhost)
}

/// A URL, or for gRPC also `host:port`. Appends `below` to its path.
fn parse_endpoint(
    text: &str,
    protocol: OtlpProtocol,
    below: &str,
    is_insecure: bool,
) -> Option<(Endpoint, bool)> {
    if !text.contains("://") {
        let target = Address::parse_grpc(text).filter(|_| protocol == OtlpProtocol::Grpc)?;
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
    let target = Address::tcp(host, port);
    Some((Endpoint { target, authority: authority.as_str().to_owned(), path }, is_secure))
}

fn tls(read: &mut SettingReader<'_>, signal: Signal) -> (ClientTls, ClientTlsNames) {
    let [ca, certificate, key] = signal.files(read);
    let client = super::tls::client_files(read, certificate, key);
    (ClientTls { ca: read.path(ca), client, any_name: false }, ClientTlsNames { ca, certificate, key })
}

fn headers(read: &mut SettingReader<'_>, signal: Signal) -> Vec<(HeaderName, HeaderValue)> {
    const EXPECTED: &str = "headers such as x-token=abc,x-region=eu, with values in percent-encoding";
    signal.parsed(read, "HEADERS", |text| {
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

/// The attributes of this instance. The first of a name takes precedence; `instance` is the id if none is given.
pub(super) fn resource(read: &mut SettingReader<'_>, instance: &str) -> Vec<(String, String)> {
    let attributes = read.parsed("OTEL_RESOURCE_ATTRIBUTES", |text| {
        let expected = "attributes such as deployment.environment=prod,k8s.pod.name=weir-0, with values in \
                        percent-encoding";
        encoded_pairs(text).ok_or(expected)
    });
    let variables = [
        ("service.name", "TRACING_SERVICE_NAME"),
        ("service.name", "OTEL_SERVICE_NAME"),
        ("service.namespace", "TRACING_SERVICE_NAMESPACE"),
        ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID"),
    ];
    let given = variables.map(|(name, variable)| Some((name.to_owned(), read.given(variable)?.value)));
    let defaults = [
        ("service.name", &*read.text("TRACING_SERVICE_NAME")),
        ("service.instance.id", instance),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut resource: Vec<(String, String)> = Vec::new();
    for (name, value) in given.into_iter().flatten().chain(attributes).chain(defaults) {
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
