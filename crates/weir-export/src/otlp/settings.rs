//! The collector, and how it is reached.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use weir_net::{
    Address,
    stream::{Stream, StreamTls, open},
    tls::{ALPN_H2, ClientTls, ClientTlsNames, TlsError},
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
    pub target: Address,
    /// The host, and the port if it was given, for HTTP's `Host`.
    pub authority: String,
    /// The path; gRPC has none.
    pub path: String,
}

// === impl ExportSettings ===

impl ExportSettings {
    pub(super) async fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let tls = self.tls().await.map_err(|error| error.to_string())?;
        open(&self.endpoint.target, tls.as_ref()).await.map_err(|error| error.to_string())
    }

    /// Reads the files for each connection, so that renewed ones take effect. None for plain text.
    pub(crate) async fn tls(&self) -> Result<Option<StreamTls>, TlsError> {
        let Some((files, names)) = self.tls.clone() else { return Ok(None) };
        let alpn: &'static [&'static [u8]] = match self.protocol {
            OtlpProtocol::Grpc => &[ALPN_H2],
            OtlpProtocol::Http => &[b"http/1.1"],
        };
        let config = files.load_aside(names, alpn).await?;
        Ok(Some(StreamTls { config, server_name: None }))
    }
}
