//! OTLP over gRPC.

use tonic::{Code, Request, codec::CompressionEncoding, metadata::MetadataMap, transport::Channel};

use super::{
    export_error::{Accepted, ExportError},
    settings::ExportSettings,
};
use crate::{
    grpc_client::{TargetTls, connect},
    proto::opentelemetry::proto::collector::trace::v1::{
        ExportTraceServiceRequest, trace_service_client::TraceServiceClient,
    },
};

/// The connection to a collector, which is opened when it is needed.
#[derive(Debug, Default)]
pub(super) struct GrpcConnection(Option<TraceServiceClient<Channel>>);

// === impl GrpcConnection ===

impl GrpcConnection {
    /// Sends `spans`. A connection that has become unusable is replaced by a new one first.
    pub(super) async fn send(
        &mut self,
        settings: &ExportSettings,
        tls: impl AsyncFn() -> Result<Option<TargetTls>, ExportError>,
        spans: &ExportTraceServiceRequest,
    ) -> Result<Accepted, ExportError> {
        if let Some(mut client) = self.0.take() {
            match export(&mut client, settings, spans).await {
                // collectors close idle and old connections
                Err(ExportError::Temporary(_)) => {}
                sent => {
                    self.0 = Some(client);
                    return sent;
                }
            }
        }
        let tls = tls().await?;
        let channel = connect(&settings.endpoint.target, tls.as_ref(), settings.timeout)
            .await
            .map_err(|error| ExportError::Temporary(error.to_string()))?;
        let mut client = TraceServiceClient::new(channel);
        if settings.gzip {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        let sent = export(&mut client, settings, spans).await?;
        self.0 = Some(client);
        Ok(sent)
    }
}

async fn export(
    client: &mut TraceServiceClient<Channel>,
    settings: &ExportSettings,
    spans: &ExportTraceServiceRequest,
) -> Result<Accepted, ExportError> {
    let mut request = Request::new(spans.clone());
    let headers = settings.headers.iter().cloned().collect();
    *request.metadata_mut() = MetadataMap::from_headers(headers);
    match client.export(request).await {
        Ok(response) => {
            Ok(response.into_inner().partial_success.map_or_else(Accepted::default, |partial| Accepted {
                rejected: u64::try_from(partial.rejected_spans).unwrap_or_default(),
                message: partial.error_message,
            }))
        }
        Err(status) => {
            let text = format!("{}: {}", status.code(), status.message());
            Err(match status.code() {
                // as the protocol says; connections that break are Unavailable or Unknown
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
                | Code::ResourceExhausted
                | Code::Unknown => ExportError::Temporary(text),
                _ => ExportError::Final(text),
            })
        }
    }
}
