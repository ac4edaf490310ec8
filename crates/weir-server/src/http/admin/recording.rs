//! `/v1/recording`: starts, stops and downloads the recording of this instance.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use weir_limit::{Period, Timestamp};
use weir_recording::{RecordingHeader, RecordingOrder, RecordingSettings, ValueKey};
use weir_store::{Store, StoreError};

use super::{
    answer::{answer, count},
    api::AdminApi,
    audit::{AuditedChange, ChangeKind},
    permission::AdminCaller,
    problem::Problem,
    query::Query,
    read_body, time,
};
use crate::http::client::HttpClient;

/// The key of hashed values.
const KEY: &str = "x-weir-recording-key";

/// The longest recording, in seconds.
const LONGEST: f64 = 86_400.0;

const MAX_BODY: usize = 4 << 10;

struct RecordingApi<S> {
    api: Arc<AdminApi<S>>,
    /// What is downloaded stays in memory although the ring goes on, so once at a time.
    downloads: Arc<Semaphore>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordingBody {
    seconds: Option<f64>,
    #[serde(default)]
    values: bool,
}

pub(super) fn router<S: Store>(api: &Arc<AdminApi<S>>) -> Router {
    let recording = RecordingApi { api: Arc::clone(api), downloads: Arc::new(Semaphore::new(1)) };
    let operations = get(download::<S>).post(start::<S>).delete(stop::<S>);
    Router::new().route("/v1/recording", operations).with_state(Arc::new(recording))
}

async fn start<S: Store>(
    State(recording): State<Arc<RecordingApi<S>>>,
    Extension(caller): Extension<AdminCaller>,
    Extension(client): Extension<HttpClient>,
    request: Request,
) -> Result<Response, Problem> {
    let (body, _hold) = read_body(&client, request, MAX_BODY).await?;
    let body: RecordingBody = if body.trim_ascii().is_empty() {
        RecordingBody::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| {
            Problem::malformed(format!("{error}; write {{\"seconds\": 300, \"values\": false}}, or {{}}."))
        })?
    };
    let order = order(&body, recording.api.now())?;
    let limiter = &recording.api.context.limiter;
    tell(limiter.start_recordings(order, recording.api.now()).await);
    let values = if body.values { "with values" } else { "without values" };
    let until = order
        .until
        .map_or_else(|| "until it is stopped".to_owned(), |until| format!("until {}", time::text(until)));
    recording.audit(&caller, format!("Started a recording {values}, {until}."));
    Ok(recording.state())
}

/// This instance has done it, whatever others do.
fn tell(announced: Result<bool, StoreError>) {
    if let Err(error) = announced {
        tracing::warn!(%error, "other instances may not have heard of a recording");
    }
}

fn order(body: &RecordingBody, now: Timestamp) -> Result<RecordingOrder, Problem> {
    let seconds = match body.seconds {
        None => None,
        Some(seconds) if seconds > 0.0 && seconds <= LONGEST => Some(Duration::from_secs_f64(seconds)),
        Some(_) => return Err(Problem::malformed("seconds is a number above 0, at most 86400.")),
    };
    let time = seconds.map(Period::from);
    Ok(RecordingOrder {
        keep: time.unwrap_or_default().max(RecordingSettings::KEEP),
        until: time.map(|time| now.after(time)),
        has_values: body.values,
    })
}

async fn stop<S: Store>(
    State(recording): State<Arc<RecordingApi<S>>>,
    Extension(caller): Extension<AdminCaller>,
) -> Response {
    tell(recording.api.context.limiter.stop_recordings().await);
    recording.audit(&caller, "Stopped the recording.".to_owned());
    recording.state()
}

async fn download<S: Store>(
    State(recording): State<Arc<RecordingApi<S>>>,
    Extension(caller): Extension<AdminCaller>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let has_values = Query::parse(&uri, &["values"])?.choice("values", &["false", "true"])? == "true";
    let downloaded = recording.download(has_values, &headers)?;
    let values = if has_values { "with values" } else { "with hashed values" };
    recording.audit(&caller, format!("Downloaded the recording {values}."));
    Ok(downloaded)
}

/// What is recorded, here.
pub(super) fn state<S: Store>(api: &AdminApi<S>) -> Value {
    let now = api.now();
    let state = api.context.limiter.recorder().state(now);
    json!({
        "is_on": state.is_on,
        "since": state.since.map(time::text),
        "until": state.until.map(time::text),
        "records": count(state.requests),
        "bytes": count(state.bytes),
        "max_bytes": count(state.max_bytes),
        "covers": time::seconds(state.oldest.map(|oldest| now.since(oldest)).unwrap_or_default()),
    })
}

// === impl RecordingApi ===

impl<S: Store> RecordingApi<S> {
    fn recorder(&self) -> &weir_recording::Recorder {
        self.api.context.limiter.recorder()
    }

    fn audit(&self, caller: &AdminCaller, what: String) {
        self.api.context.audit.add(AuditedChange {
            at: self.api.now(),
            kind: ChangeKind::Recording,
            who: Arc::clone(&caller.name),
            what,
            before: None,
            after: None,
        });
    }

    fn state(&self) -> Response {
        answer(&state(&self.api))
    }

    fn download(&self, has_values: bool, headers: &HeaderMap) -> Result<Response, Problem> {
        let state = self.recorder().state(self.api.now());
        if state.since.is_none() {
            return Err(Problem::new(StatusCode::NOT_FOUND, "There is no recording: start one by a POST."));
        }
        let key = key(has_values, state.has_values, headers)?;
        let permit = Arc::clone(&self.downloads).try_acquire_owned();
        let permit = permit.map_err(|_| Problem::too_many("Somebody else downloads the recording.", 5))?;
        let store = self.api.context.limiter.store();
        let header = RecordingHeader {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.api.facts.instance.clone(),
            clock_offset: store.clock_offset(),
            is_shared: store.shared_counts().store.is_some(),
            ..RecordingHeader::default()
        };
        let parts = self.recorder().snapshot().into_parts(header, key).map(move |part| {
            let _ = &permit;
            Ok::<_, Infallible>(Bytes::from(part))
        });
        let body = Body::from_stream(stream::iter(parts));
        Ok(([(CONTENT_TYPE, "application/octet-stream")], body).into_response())
    }
}

/// None if values are to stay as they are.
fn key(has_values: bool, may_have_values: bool, headers: &HeaderMap) -> Result<Option<ValueKey>, Problem> {
    if has_values && may_have_values {
        return Ok(None);
    }
    if has_values {
        let detail = "The recording was started without values; start one with {\"values\": true}.";
        return Err(Problem::malformed(detail));
    }
    let Some(key) = headers.get(KEY) else {
        let detail = format!("Values are hashed under the key in the header {KEY}, which is missing.");
        return Err(Problem::malformed(detail));
    };
    let key = key.to_str().unwrap_or_default().parse::<ValueKey>();
    key.map(Some).map_err(|error| Problem::malformed(format!("{KEY}: {error}.")))
}
