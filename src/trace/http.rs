//! OTLP over HTTP: protobuf messages in the bodies of POST requests.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use prost::Message as _;

use super::{
    export_error::{Accepted, ExportError},
    settings::ExportSettings,
};
use crate::{
    grpc_client::{TargetTls, open},
    proto::opentelemetry::proto::collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
    },
};

/// The most bytes of a response that are read.
const MAX_RESPONSE: usize = 64 << 10;

/// The most characters of a response in an error.
const MAX_TEXT: usize = 200;

/// The connection to a collector, which is opened when it is needed.
#[derive(Debug, Default)]
pub(super) struct HttpConnection(Option<SendRequest<Full<Bytes>>>);

// === impl HttpConnection ===

impl HttpConnection {
    /// Sends `spans`. A connection that has become unusable is replaced by a new one first.
    pub(super) async fn send(
        &mut self,
        settings: &ExportSettings,
        tls: impl AsyncFn() -> Result<Option<TargetTls>, ExportError>,
        spans: &ExportTraceServiceRequest,
    ) -> Result<Accepted, ExportError> {
        let body = encode(settings, spans)?;
        if let Some(mut connection) = self.0.take().filter(|connection| !connection.is_closed()) {
            match post(&mut connection, settings, body.clone()).await {
                // collectors close idle and old connections
                Err(ExportError::Temporary(_)) if connection.is_closed() => {}
                sent => {
                    self.0 = Some(connection);
                    return sent;
                }
            }
        }
        let tls = tls().await?;
        let temporary = |error: String| ExportError::Temporary(error);
        let stream = open(&settings.endpoint.target, tls.as_ref())
            .await
            .map_err(|error| temporary(error.to_string()))?;
        let (mut connection, driver) =
            handshake(TokioIo::new(stream)).await.map_err(|error| temporary(error.to_string()))?;
        // its errors are those of its requests
        tokio::spawn(async move { drop(driver.await) });
        let sent = post(&mut connection, settings, body).await;
        self.0 = Some(connection);
        sent
    }
}

fn encode(settings: &ExportSettings, spans: &ExportTraceServiceRequest) -> Result<Bytes, ExportError> {
    let message = spans.encode_to_vec();
    if !settings.gzip {
        return Ok(message.into());
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let compressed = encoder.write_all(&message).and_then(|()| encoder.finish());
    compressed.map(Bytes::from).map_err(|error| ExportError::Final(error.to_string()))
}

async fn post(
    connection: &mut SendRequest<Full<Bytes>>,
    settings: &ExportSettings,
    body: Bytes,
) -> Result<Accepted, ExportError> {
    let temporary = |error: hyper::Error| ExportError::Temporary(error.to_string());
    connection.ready().await.map_err(temporary)?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = settings
        .endpoint
        .path
        .parse()
        .map_err(|error| ExportError::Final(format!("invalid path: {error}")))?;
    let host = HeaderValue::from_str(&settings.endpoint.authority);
    let headers = request.headers_mut();
    headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION"))));
    headers.extend(settings.headers.iter().cloned());
    headers.insert(header::HOST, host.map_err(|error| ExportError::Final(format!("invalid host: {error}")))?);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    if settings.gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let response = connection.send_request(request).await.map_err(temporary)?;
    let (head, body) = response.into_parts();
    // a response that is too long or breaks off says nothing
    let body = Limited::new(body, MAX_RESPONSE).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    match head.status {
        status if status.is_success() => Ok(accepted(&body)),
        // as the protocol says
        status @ (StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT) => {
            Err(ExportError::Temporary(format!("the collector answers {status}")))
        }
        status => Err(ExportError::Final(format!("the collector answers {status}: {}", printable(&body)))),
    }
}

fn accepted(body: &[u8]) -> Accepted {
    let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    response.partial_success.map_or_else(Accepted::default, |partial| Accepted {
        rejected: u64::try_from(partial.rejected_spans).unwrap_or_default(),
        message: partial.error_message,
    })
}

/// Returns the beginning of `body` on one line.
fn printable(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.chars().take(MAX_TEXT).map(|char| if char.is_control() { ' ' } else { char }).collect()
}
