//! Sends messages to the collector.

use std::{io::Write as _, sync::Arc};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{
    Request as HttpRequest,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use opentelemetry_http::HttpClient as _;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse, metrics_service_client::MetricsServiceClient,
};
use prost::Message as _;
use tonic::{Request, codec::CompressionEncoding, metadata::MetadataMap, transport::Channel};

use super::repeat::Repeat;
use crate::otlp::{
    failure::Cause,
    grpc::channel,
    http::HttpConnection,
    settings::{ExportSettings, Protocol},
};

/// The connection to a collector.
pub(super) struct Sender {
    connection: Connection,
    cause: Arc<Cause>,
}

enum Connection {
    Grpc { client: Box<MetricsServiceClient<Channel>>, headers: MetadataMap },
    Http { client: HttpConnection, gzip: bool },
}

/// What the collector says about points that it has received.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Those that it has not taken.
    pub(super) rejected: u64,
    /// Its reason, or a warning; empty in most cases.
    pub(super) message: String,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// A text for the log.
    pub(super) error: String,
    pub(super) repeat: Repeat,
}

// === impl Sender ===

impl Sender {
    /// Returns a connection that is opened when it is needed. Must be called in a runtime.
    ///
    /// # Errors
    ///
    /// A text, if the collector's address is none.
    pub(super) fn new(settings: &ExportSettings) -> Result<Self, String> {
        let cause = Arc::new(Cause::default());
        let connection = match settings.protocol {
            Protocol::Grpc => {
                let mut client = MetricsServiceClient::new(channel(settings, Arc::clone(&cause))?);
                if settings.gzip {
                    client = client.send_compressed(CompressionEncoding::Gzip);
                }
                let headers = MetadataMap::from_headers(settings.headers.iter().cloned().collect());
                Connection::Grpc { client: Box::new(client), headers }
            }
            Protocol::Http => {
                let client = HttpConnection::new(settings.clone(), Arc::clone(&cause));
                Connection::Http { client, gzip: settings.gzip }
            }
        };
        Ok(Self { connection, cause })
    }

    /// Makes one attempt to send `message`.
    pub(super) async fn send(&mut self, message: &ExportMetricsServiceRequest) -> Result<Accepted, Failure> {
        match &mut self.connection {
            Connection::Grpc { client, headers } => {
                let mut request = Request::new(message.clone());
                *request.metadata_mut() = headers.clone();
                match client.export(request).await {
                    Ok(response) => Ok(Accepted::of(response.into_inner())),
                    Err(status) => {
                        let answer =
                            || format!("the collector answers {:?}: {}", status.code(), status.message());
                        let error = self.cause.take().unwrap_or_else(answer);
                        Err(Failure { error, repeat: Repeat::of_status(&status) })
                    }
                }
            }
            Connection::Http { client, gzip } => {
                let sent = client.send_bytes(encode(message, *gzip)?).await;
                let error = self.cause.take().unwrap_or_default();
                match sent {
                    Ok(response) if response.status().is_success() => {
                        let body = ExportMetricsServiceResponse::decode(&**response.body());
                        Ok(Accepted::of(body.unwrap_or_default()))
                    }
                    Ok(response) => Err(Failure { error, repeat: Repeat::of_response(&response) }),
                    Err(_) => Err(Failure { error, repeat: Repeat::Later }),
                }
            }
        }
    }
}

fn encode(message: &ExportMetricsServiceRequest, gzip: bool) -> Result<HttpRequest<Bytes>, Failure> {
    let impossible = |error: String| Failure { error, repeat: Repeat::Never };
    let mut body = message.encode_to_vec();
    // the connection adds the address
    let mut request = HttpRequest::post("/").header(CONTENT_TYPE, "application/x-protobuf");
    if gzip {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let compressed = encoder.write_all(&body).and_then(|()| encoder.finish());
        body = compressed.map_err(|error| impossible(error.to_string()))?;
        request = request.header(CONTENT_ENCODING, "gzip");
    }
    request.body(body.into()).map_err(|error| impossible(error.to_string()))
}

// === impl Accepted ===

impl Accepted {
    fn of(response: ExportMetricsServiceResponse) -> Self {
        response.partial_success.map_or_else(Self::default, |partial| Self {
            rejected: u64::try_from(partial.rejected_data_points).unwrap_or_default(),
            message: partial.error_message,
        })
    }
}
