//! `/v1/recording`: starts, stops and downloads the recording of this instance.

use std::{convert::Infallible, net::IpAddr, sync::Arc};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Request as HttpRequest, State},
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_TYPE, HOST, ORIGIN},
    },
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::{access::HttpPeer, client::HttpClient, context::ServiceContext};
use weir_limit::{Period, Timestamp};
use weir_limiter::Limiter;
use weir_recording::{RecordingHeader, RecordingOrder, RecordingSettings, ValueKey};
use weir_replay::format_time;
use weir_store::{Store, clock::Clock};

/// The key of hashed values.
const KEY: &str = "x-weir-recording-key";

/// The longest recording, in seconds.
const LONGEST: f64 = 86_400.0;

struct RecordingApi<S> {
    limiter: Arc<Limiter<S>>,
    clock: Arc<dyn Clock>,
    instance: String,
    /// What is downloaded stays in memory although the ring goes on, so once at a time.
    downloads: Arc<Semaphore>,
}

/// Why a request was refused, and what would be right.
type Refusal = (StatusCode, String);

/// The routes, which ask nobody who he is. `instance` is named in what is downloaded.
pub fn recording_routes<S: Store>(context: &ServiceContext<S>, instance: &str) -> Router {
    let api = RecordingApi {
        limiter: Arc::clone(&context.limiter),
        clock: Arc::clone(&context.clock),
        instance: instance.to_owned(),
        downloads: Arc::new(Semaphore::new(1)),
    };
    let operations = get(download::<S>).post(start::<S>).delete(stop::<S>);
    Router::new().route("/v1/recording", operations.with_state(Arc::new(api)))
}

/// The same for clients on this host, which no page of another site may be.
pub(super) fn local_recording_routes<S: Store>(context: &ServiceContext<S>, instance: &str) -> Router {
    recording_routes(context, instance).layer(from_fn(here_only))
}

async fn here_only(Extension(peer): Extension<HttpPeer>, request: HttpRequest, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let host =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(host, _)| host);
    let is_here =
        host == "localhost" || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if !peer.is_loopback() || !is_here || request.headers().contains_key(ORIGIN) {
        let detail = "recordings are for clients on this host: ask 127.0.0.1 or localhost";
        return problem(&(StatusCode::FORBIDDEN, detail.to_owned()));
    }
    next.run(request).await
}

async fn start<S: Store>(
    State(api): State<Arc<RecordingApi<S>>>,
    Extension(client): Extension<HttpClient>,
    request: HttpRequest,
) -> Response {
    let (body, _hold) = match client.read(request.into_body()).await {
        Ok(read) => read,
        Err(error) => return error.into_response(),
    };
    match api.order(&body) {
        Ok(order) => {
            api.limiter.recorder().start(order, api.clock.now());
            api.state()
        }
        Err(error) => problem(&(StatusCode::BAD_REQUEST, error)),
    }
}

async fn stop<S: Store>(State(api): State<Arc<RecordingApi<S>>>) -> Response {
    api.limiter.recorder().stop();
    api.state()
}

async fn download<S: Store>(State(api): State<Arc<RecordingApi<S>>>, request: HttpRequest) -> Response {
    let has_values =
        request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "values=true"));
    api.download(has_values, request.headers()).unwrap_or_else(|refusal| problem(&refusal))
}

/// RFC 9457.
fn problem((status, detail): &Refusal) -> Response {
    let title = status.canonical_reason().unwrap_or_default();
    let body = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    (*status, [(CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

// === impl RecordingApi ===

impl<S: Store> RecordingApi<S> {
    fn order(&self, body: &[u8]) -> Result<RecordingOrder, String> {
        let fields: Map<String, Value> = if body.trim_ascii().is_empty() {
            Map::new()
        } else {
            serde_json::from_slice(body).map_err(|error| format!("the body is no JSON object: {error}"))?
        };
        if let Some(unknown) = fields.keys().find(|key| !["seconds", "values"].contains(&key.as_str())) {
            return Err(format!("unknown field {unknown:?}: there are seconds and values"));
        }
        let has_values = match fields.get("values") {
            None => false,
            Some(value) => value.as_bool().ok_or("values must be true or false")?,
        };
        let seconds = match fields.get("seconds") {
            None => None,
            Some(value) => Some(
                value
                    .as_f64()
                    .filter(|seconds| *seconds > 0.0 && *seconds <= LONGEST)
                    .ok_or("seconds must be a number above 0 and at most 86400")?,
            ),
        };
        let time = seconds.map(|seconds| Period::from(std::time::Duration::from_secs_f64(seconds)));
        Ok(RecordingOrder {
            keep: time.unwrap_or_default().max(RecordingSettings::KEEP),
            until: time.map(|time| self.clock.now().after(time)),
            has_values,
        })
    }

    fn state(&self) -> Response {
        let now = self.clock.now();
        let state = self.limiter.recorder().state(now);
        let time = |at: Option<Timestamp>| at.map(format_time);
        #[expect(clippy::cast_precision_loss, reason = "a time to look at")]
        let covers = state.oldest.map_or(0.0, |oldest| now.since(oldest).as_nanos() as f64 / 1e9);
        let body = json!({
            "is_on": state.is_on,
            "since": time(state.since),
            "until": time(state.until),
            "records": state.requests,
            "bytes": state.bytes,
            "max_bytes": state.max_bytes,
            "covers": covers,
        });
        ([(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
    }

    fn download(&self, has_values: bool, headers: &HeaderMap) -> Result<Response, Refusal> {
        let recorder = self.limiter.recorder();
        let state = recorder.state(self.clock.now());
        if state.since.is_none() {
            return Err((StatusCode::NOT_FOUND, "there is no recording: start one by a POST".to_owned()));
        }
        let key = headers.get(KEY).map(|key| key.to_str().unwrap_or_default().parse::<ValueKey>());
        let key = match (has_values, key) {
            (true, _) if state.has_values => None,
            (true, _) => {
                let error = "this recording was started without values: start one with {\"values\": true}";
                return Err((StatusCode::BAD_REQUEST, error.to_owned()));
            }
            (false, Some(Ok(key))) => Some(key),
            (false, Some(Err(error))) => return Err((StatusCode::BAD_REQUEST, format!("{KEY}: {error}"))),
            (false, None) => {
                let error = format!("values are hashed under the key in the header {KEY}, which is missing");
                return Err((StatusCode::BAD_REQUEST, error));
            }
        };
        let Ok(permit) = Arc::clone(&self.downloads).try_acquire_owned() else {
            let error = "somebody else downloads the recording: try again";
            return Err((StatusCode::TOO_MANY_REQUESTS, error.to_owned()));
        };
        let header = RecordingHeader {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance.clone(),
            clock_offset: self.limiter.store().clock_offset(),
            ..RecordingHeader::default()
        };
        let parts = recorder.snapshot().into_parts(header, key).map(move |part| {
            let _ = &permit;
            Ok::<_, Infallible>(Bytes::from(part))
        });
        let body = Body::from_stream(stream::iter(parts));
        Ok(([(CONTENT_TYPE, "application/octet-stream")], body).into_response())
    }
}
