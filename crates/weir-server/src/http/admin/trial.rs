//! `POST /v1/try`: what is wrong with rules that are not in force, and what they would have decided.

use std::{collections::BTreeMap, sync::Arc, thread};

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
    routing::post,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};
use weir_observe::hot_keys::HotKeyValues;
use weir_recording::{Recording, RecordingHeader};
use weir_replay::{ReplaySettings, Trial, TrialError, try_rules};
use weir_store::Store;

use super::{answer::answer, api::AdminApi, problem::Problem, read_body};
use crate::http::client::HttpClient;

/// The files, and what JSON needs: an escape may be six bytes long.
const MAX_BODY: usize = 2 * Trial::MAX_BYTES;

struct TrialApi<S> {
    api: Arc<AdminApi<S>>,
    turn: Arc<Semaphore>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrialBody {
    files: BTreeMap<String, String>,
}

pub(super) fn router<S: Store>(api: &Arc<AdminApi<S>>) -> Router {
    let trial = TrialApi { api: Arc::clone(api), turn: Arc::new(Semaphore::new(1)) };
    Router::new().route("/v1/try", post(try_files::<S>)).with_state(Arc::new(trial))
}

async fn try_files<S: Store>(
    State(trial): State<Arc<TrialApi<S>>>,
    Extension(client): Extension<HttpClient>,
    request: Request,
) -> Result<Response, Problem> {
    let turn = Arc::clone(&trial.turn).try_acquire_owned();
    let turn = turn.map_err(|_| Problem::too_many("Somebody else tries rules.", 5))?;
    let (body, _hold) = read_body(&client, request, MAX_BODY).await?;
    let body: TrialBody = serde_json::from_slice(&body).map_err(|error| {
        Problem::malformed(format!("{error}; write {{\"files\": {{\"shop.yaml\": \"domain: …\"}}}}."))
    })?;
    let shows_values = trial.api.context.limiter.shown_values() == HotKeyValues::Shown;
    let (done, tried) = oneshot::channel();
    let broken =
        || Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "The rules cannot be tried; see the log.");
    // a thread of its own: what is freed by it leaves no memory with those that serve
    let spawned = thread::Builder::new().name("weir-try".into()).spawn(move || {
        let tried = trial.run(body.files);
        // the next one may begin when this answer arrives
        drop(turn);
        let _ = done.send(tried);
    });
    spawned.map_err(|error| {
        tracing::error!(%error, "cannot start a thread");
        broken()
    })?;
    let tried = tried.await.map_err(|_| broken())?;
    let shown = |tried: Trial| {
        let mut tried = tried.json();
        if !shows_values && tried["comparison"].is_object() {
            tried["comparison"]["keys"] = Value::Array(Vec::new());
        }
        answer(&tried)
    };
    tried.map(shown).map_err(|error| match error {
        TrialError::TooLarge => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "The files exceed 16 MiB."),
        TrialError::TooSlow => Problem::too_many("It takes longer than 30 s: try a shorter recording.", 60),
    })
}

// === impl TrialApi ===

impl<S: Store> TrialApi<S> {
    fn run(&self, files: BTreeMap<String, String>) -> Result<Trial, TrialError> {
        let limiter = &self.api.context.limiter;
        let recorder = limiter.recorder();
        let state = recorder.state(self.api.now());
        let last = (state.requests > 0).then(|| {
            let is_shared = limiter.store().shared_counts().store.is_some();
            let header = RecordingHeader { is_shared, ..RecordingHeader::default() };
            let parts = recorder.snapshot().into_parts(header, None);
            Recording::read(parts.flatten().collect()).ok()
        });
        let settings = ReplaySettings { modes: limiter.modes().clone(), scope: limiter.scope() };
        try_rules(files, &self.api.facts.options, last.flatten(), &settings)
    }
}
