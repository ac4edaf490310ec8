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
    pub protocol: OtlpProtocol,
    pub endpoint: Endpoint,
    pub tls: Option<(ClientTls, ClientTlsNames)>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub gzip: bool,
    /// How long one attempt may take.
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    Grpc,
    /// Protobuf over HTTP/1.1.
    Http,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
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
