//! `GET /v1/files`: the rule files, where a change begins.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{StatusCode, Uri},
    response::Response,
};
use serde_json::{Value, json};
use weir_store::Store;

use super::{answer::answer, api::AdminApi, problem::Problem, query::Query};

pub(super) async fn list<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let part = Query::parse(&uri, &[])?.part()?;
    let missing = |why: &str| Problem::new(StatusCode::NOT_FOUND, format!("There are no rule files: {why}."));
    let Some(files) = api.facts.files.clone() else {
        return Err(missing("the rules come from a control plane (CONFIG_TYPE)"));
    };
    let read = tokio::task::spawn_blocking(move || (files.0)()).await;
    let files =
        read.map_err(|error| error.to_string()).and_then(|files| files).map_err(|why| missing(&why))?;
    let rejected = api.context.stats.config_rejected.get() == 1;
    let note = rejected.then_some("These files have errors: the rules before them are in force.");
    let (files, next) = part.of(files.into_iter());
    let items = files.into_iter().map(|(name, text)| -> Value { json!({ "name": name, "text": text }) });
    Ok(answer(&json!({ "items": items.collect::<Vec<_>>(), "next": next, "note": note })))
}
