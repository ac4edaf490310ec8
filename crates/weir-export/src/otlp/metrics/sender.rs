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

use crate::otlp::{
    failure::Cause,
    grpc::channel,
    http::HttpConnection,
    settings::{ExportSettings, OtlpProtocol},
};

pub(super) struct Sender {
    connection: CollectorConnection,
    cause: Arc<Cause>,
}

enum CollectorConnection {
    Grpc { client: Box<MetricsServiceClient<Channel>>, headers: MetadataMap },
    Http { client: HttpConnection, gzip: bool },
}

/// What the collector says about points that it has received.
#[derive(Debug, Default)]
pub(super) struct AcceptedPoints {
    pub(super) rejected: u64,
    /// Its reason, or a warning; empty in most cases.
    pub(super) message: String,
}

// === impl Sender ===

impl Sender {
    /// The connection is opened when it is needed. Must be called in a runtime.
    pub(super) fn new(settings: &ExportSettings) -> Result<Self, String> {
        let cause = Arc::new(Cause::default());
        let connection = match settings.protocol {
            OtlpProtocol::Grpc => {
                let mut client = MetricsServiceClient::new(channel(settings, Arc::clone(&cause))?);
                if settings.gzip {
                    client = client.send_compressed(CompressionEncoding::Gzip);
                }
                let headers = MetadataMap::from_headers(settings.headers.iter().cloned().collect());
                CollectorConnection::Grpc { client: Box::new(client), headers }
            }
            OtlpProtocol::Http => {
                let client = HttpConnection::new(settings.clone(), Arc::clone(&cause));
                CollectorConnection::Http { client, gzip: settings.gzip }
            }
        };
        Ok(Self { connection, cause })
    }

    pub(super) async fn send(
        &mut self,
        message: ExportMetricsServiceRequest,
    ) -> Result<AcceptedPoints, String> {
        match &mut self.connection {
            CollectorConnection::Grpc { client, headers } => {
                let mut request = Request::new(message);
                *request.metadata_mut() = headers.clone();
                let sent = client.export(request).await;
                sent.map(|response| AcceptedPoints::of(response.into_inner())).map_err(|status| {
                    // a connection that could not be opened has a cause already
                    self.cause.lock().take().unwrap_or_else(|| {
                        format!("the collector answers {:?}: {}", status.code(), status.message())
                    })
                })
            }
            CollectorConnection::Http { client, gzip } => {
                let sent = client.send_bytes(encode(&message, *gzip)?).await;
                match sent.ok().filter(|response| response.status().is_success()) {
                    Some(response) => {
                        let body = ExportMetricsServiceResponse::decode(&**response.body());
                        Ok(AcceptedPoints::of(body.unwrap_or_default()))
                    }
                    None => Err(self.cause.lock().take().unwrap_or_default()),
                }
            }
        }
    }
}

fn encode(message: &ExportMetricsServiceRequest, gzip: bool) -> Result<HttpRequest<Bytes>, String> {
    let mut body = message.encode_to_vec();
    // the connection adds the address
    let mut request = HttpRequest::post("/").header(CONTENT_TYPE, "application/x-protobuf");
    if gzip {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let compressed = encoder.write_all(&body).and_then(|()| encoder.finish());
        body = compressed.map_err(|error| error.to_string())?;
        request = request.header(CONTENT_ENCODING, "gzip");
    }
    request.body(body.into()).map_err(|error| error.to_string())
}

// === impl AcceptedPoints ===

impl AcceptedPoints {
    fn of(response: ExportMetricsServiceResponse) -> Self {
        response.partial_success.map_or_else(Self::default, |partial| Self {
            rejected: u64::try_from(partial.rejected_data_points).unwrap_or_default(),
            message: partial.error_message,
        })
    }
}
