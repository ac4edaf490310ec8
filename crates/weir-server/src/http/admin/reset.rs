//! `POST /v1/reset`: forgets the hits of a descriptor's counters.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use serde::Deserialize;
use serde_json::json;
use weir_limit::{Entry, Period};
use weir_limiter::{LimitError, MASK, ResetError, ResetOutcome};
use weir_observe::hot_keys::HotKeyValues;
use weir_store::Store;

use super::{
    answer::{answer, count, entry},
    api::AdminApi,
    audit::{AuditedChange, ChangeKind},
    counters,
    permission::AdminCaller,
    problem::Problem,
    read_body,
};
use crate::http::client::HttpClient;

/// The most bytes of a body: the entries that instances can tell each other of, and what JSON needs.
const MAX_BODY: usize = 32 << 10;

const ONLY_HERE: &str = "Other instances, if there are any, count by themselves: ask each of them.";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetBody {
    domain: String,
    entries: Vec<BodyEntry>,
    older_than: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BodyEntry {
    key: String,
    #[serde(default)]
    value: String,
}

pub(super) async fn post<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    Extension(caller): Extension<AdminCaller>,
    Extension(client): Extension<HttpClient>,
    request: Request,
) -> Result<Response, Problem> {
    let (body, _hold) = read_body(&client, request, MAX_BODY).await?;
    let body: ResetBody = serde_json::from_slice(&body).map_err(|error| {
        Problem::malformed(format!(
            "{error}; write {{\"domain\": …, \"entries\": [{{\"key\": …, \"value\": …}}]}}."
        ))
    })?;
    if body.entries.is_empty() {
        return Err(Problem::malformed("entries is empty; a reset is of one descriptor, not of a domain."));
    }
    let older_than = body.older_than.map(age).transpose()?;
    // whatever becomes of the caller: others have heard of it
    let reset = tokio::spawn(async move { reset(&api, &caller, &body, older_than).await });
    reset.await.map_err(|error| {
        tracing::error!(%error, "cannot reset a counter");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "The counter cannot be reset; see the log.")
    })?
}

async fn reset<S: Store>(
    api: &AdminApi<S>,
    caller: &AdminCaller,
    body: &ResetBody,
    older_than: Option<Period>,
) -> Result<Response, Problem> {
    let entries: Vec<Entry<'_>> =
        body.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect();
    let was = counters::views(api, &body.domain, &entries).await?;
    let context = &api.context;
    let outcome = context.limiter.reset(&body.domain, &entries, older_than, &*context.clock).await;
    let shows_values = context.limiter.shown_values() == HotKeyValues::Shown;
    let value = |entry: &Entry<'_>| if shows_values { entry.value.to_owned() } else { MASK.to_owned() };
    let names: Vec<String> = entries.iter().map(|entry| format!("{}={}", entry.key, value(entry))).collect();
    let used = |view: &serde_json::Value| {
        let tiers = view["tiers"].as_array().cloned().unwrap_or_default();
        tiers
            .iter()
            .map(|tier| format!("{} of {}", tier["used"], tier["limit"]))
            .collect::<Vec<_>>()
            .join(", ")
    };
    context.audit.add(AuditedChange {
        at: api.now(),
        kind: ChangeKind::Reset,
        who: Arc::clone(&caller.name),
        what: match older_than {
            Some(age) => {
                format!("Freed requests in flight older than {age} of {}: {}.", body.domain, names.join(" "))
            }
            None => format!("Reset {}: {}.", body.domain, names.join(" ")),
        },
        before: was.first().map(used).filter(|used| !used.is_empty()),
        after: outcome.as_ref().err().map(|error| format!("unknown: {error}")),
    });
    let ResetOutcome { places, is_everywhere, .. } = outcome.map_err(|error| problem(&error))?;
    let has_store = context.limiter.store().shared_counts().store.is_some();
    Ok(answer(&json!({
        "domain": body.domain,
        "entries": entries.iter().map(entry).collect::<Vec<_>>(),
        "was": was,
        "places_freed": count(places),
        "scope": if is_everywhere || older_than.is_some() && has_store { "fleet" } else { "instance" },
        "note": (!is_everywhere && older_than.is_none()).then_some(ONLY_HERE),
    })))
}

fn age(seconds: f64) -> Result<Period, Problem> {
    if !(0.0..=1e9).contains(&seconds) {
        return Err(Problem::malformed("older_than is in seconds, from 0 to 1000000000."));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was checked")]
    let millis = (seconds * 1e3) as u64;
    Ok(Period::from_millis(millis))
}

fn problem(error: &ResetError) -> Problem {
    match error {
        ResetError::NoLimit => Problem::new(StatusCode::NOT_FOUND, format!("There is no counter: {error}.")),
        ResetError::Limit(LimitError::Store(error)) => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("The store gave up: {error}. The counter may have been reset nevertheless; ask again."),
        ),
        ResetError::Limit(error) => counters::problem(error),
    }
}
