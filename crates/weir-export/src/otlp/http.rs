//! OTLP over HTTP: the connection on which messages are posted.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode, Uri,
    header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::{sync::Mutex, time::timeout};

use super::{failure::Cause, settings::ExportSettings};
use weir_observe::text::shortened;

const MAX_RESPONSE: usize = 64 << 10;

const MAX_TEXT: usize = 200;

#[derive(Clone, Debug)]
pub(crate) struct HttpConnection(Arc<SharedConnection>);

#[derive(Debug)]
struct SharedConnection {
    settings: ExportSettings,
    open: Mutex<Option<SendRequest<Full<Bytes>>>>,
    cause: Arc<Cause>,
}

// === impl HttpConnection ===

impl HttpConnection {
    pub(crate) fn new(settings: ExportSettings, cause: Arc<Cause>) -> Self {
        Self(Arc::new(SharedConnection { settings, open: Mutex::default(), cause }))
    }
}

#[tonic::async_trait]
impl HttpClient for HttpConnection {
    /// The address and headers are the settings': those of OpenTelemetry's exporters come from the same variables.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let SharedConnection { settings, cause, .. } = &*self.0;
        let sent = timeout(settings.timeout, self.0.send(request)).await;
        let sent = sent.unwrap_or_else(|_| Err(format!("no answer within {:?}", settings.timeout)));
        match &sent {
            Err(error) => *cause.lock() = Some(error.clone()),
            Ok(response) if !response.status().is_success() => {
                *cause.lock() = Some(failure(response.status(), response.body()));
            }
            Ok(_) => {}
        }
        sent.map_err(Into::into)
    }
}

// === impl SharedConnection ===

impl SharedConnection {
    async fn send(&self, message: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let mut open = self.open.lock().await;
        if let Some(mut connection) = open.take().filter(|connection| !connection.is_closed()) {
            match self.post(&mut connection, &message).await {
                // collectors close idle and old connections
                Err(_) if connection.is_closed() => {}
                sent => {
                    *open = Some(connection);
                    return sent;
                }
            }
        }
        let stream = self.settings.connect().await?;
        let (mut connection, driver) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // its errors are those of its requests
        tokio::spawn(async move { drop(driver.await) });
        let sent = self.post(&mut connection, &message).await;
        *open = Some(connection);
        sent
    }

    async fn post(
        &self,
        connection: &mut SendRequest<Full<Bytes>>,
        message: &Request<Bytes>,
    ) -> Result<Response<Bytes>, String> {
        connection.ready().await.map_err(|error| error.to_string())?;
        let request = self.request(message)?;
        let response = connection.send_request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = response.into_parts();
        // a response that is too long or breaks off says nothing
        let body = Limited::new(body, MAX_RESPONSE).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Ok(Response::from_parts(head, body))
    }

    fn request(&self, message: &Request<Bytes>) -> Result<Request<Full<Bytes>>, String> {
        let settings = &self.settings;
        let uri: Uri = settings.endpoint.path.parse().map_err(|error| format!("invalid path: {error}"))?;
        let host = HeaderValue::from_str(&settings.endpoint.authority);
        let mut request = Request::post(uri)
            .body(Full::new(message.body().clone()))
            .map_err(|error| format!("invalid request: {error}"))?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION"))));
        headers.extend(settings.headers.iter().cloned());
        headers.insert(HOST, host.map_err(|error| format!("invalid host: {error}"))?);
        for name in [CONTENT_TYPE, CONTENT_ENCODING] {
            if let Some(value) = message.headers().get(&name) {
                headers.insert(name, value.clone());
            }
        }
        Ok(request)
    }
}

fn failure(status: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = shortened(&text, MAX_TEXT);
    if text.is_empty() {
        format!("the collector answers {status}")
    } else {
        format!("the collector answers {status}: {text}")
    }
}
