//! The collector, and how it is reached.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use weir_net::{
    grpc_client::Target,
    tls::{ClientTls, ClientTlsNames},
};

/// The collector, and how it is reached.
#[derive(Clone, Debug)]
pub struct ExportSettings {
    /// The protocol.
    pub protocol: OtlpProtocol,
    /// The collector.
    pub endpoint: Endpoint,
    /// Its TLS, and the variables of that.
    pub tls: Option<(ClientTls, ClientTlsNames)>,
    /// The headers of every export.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether exports are compressed with gzip.
    pub gzip: bool,
    /// How long one attempt may take.
    pub timeout: Duration,
}

/// A protocol of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// gRPC.
    Grpc,
    /// Protobuf over HTTP/1.1.
    Http,
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host and the port.
    pub target: Target,
    /// The host, and the port if it was given, for HTTP's `Host`.
    pub authority: String,
    /// The path; gRPC has none.
    pub path: String,
}
