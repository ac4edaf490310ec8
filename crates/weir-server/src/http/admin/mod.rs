//! The admin API: everything that this process knows, for the console, commands and scripts, on `DEBUG_PORT`.
//!
//! - `openapi.json`: the contract. Each operation is there, and `tests/admin` compares them.
//! - `permission.rs`: who may; every route of this port but the open ones is behind it. `sites.rs` has the checks of
//!   `Host` and `Origin`, `tokens.rs` the file of tokens, `cookie.rs` and `login.rs` browsers, `wrong_tokens.rs` the bound
//!   on guesses.
//! - `api.rs`: what the operations share. Each operation has a file of its name; `log_line.rs` reads lines for `why.rs`.
//! - `traffic.rs`: rates. `audit.rs`: changes. `calendars.rs`: calendars, which instances compare.
//! - `query.rs`, `answer.rs`, `time.rs`, `problem.rs`: what goes in, and what comes out.
//! - `console.rs`: the files of `console/`.

pub(super) mod answer;
mod api;
mod attention;
mod audit;
mod calendars;
mod console;
mod cookie;
pub(super) mod counters;
mod files;
mod fleet;
mod hot;
mod instance;
mod log_line;
mod login;
mod permission;
mod problem;
pub(super) mod query;
mod recording;
mod reset;
mod rules;
mod sites;
mod stream;
pub(super) mod time;
mod tokens;
mod traffic;
mod trial;
mod unmatched;
mod why;
mod wrong_tokens;

use std::{fmt, path::PathBuf, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::{any, get, post},
};
use serde_json::{Value, json};

use self::{
    api::AdminApi,
    fleet::KnownFleet,
    query::{ListPart, Query},
};
pub use self::{
    api::{ProcessFacts, ShownFiles},
    audit::{AuditTrail, AuditedChange, ChangeKind, RuleError},
    permission::{AdminCaller, AdminLevel, CallerProof, Needs, Permission},
    problem::Problem,
    tokens::AdminTokens,
};
use super::{
    client::{BodyError, HttpClient},
    context::ServiceContext,
};
use crate::{bounds::MAX_MESSAGE, connections::AccountHold};
use weir_store::Store;

/// The contract.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Who may use the admin API, as the settings say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminSettings {
    /// `WEIR_ADMIN`: what may be done without a token, and the most that is allowed; none for `read` on loopback.
    pub level: Option<AdminLevel>,
    /// `WEIR_ADMIN_TOKEN_FILE`.
    pub token_file: Option<PathBuf>,
    /// `WEIR_ADMIN_HOSTS`: names of this port, each with a port or for any.
    pub hosts: Vec<Box<str>>,
    /// `WEIR_ADMIN_PLAIN`: tokens of other hosts are taken without TLS, too.
    pub allows_plain: bool,
}

/// What the debug port needs beside the pages.
pub struct AdminParts {
    pub permission: Arc<Permission>,
    pub facts: ProcessFacts,
    /// Operations of other parts of weir, each with its state, and what they need. Their handlers find an
    /// [`AdminCaller`] among the extensions of a request, and answer errors by a [`Problem`].
    pub more: Vec<(Needs, Router)>,
}

/// All routes of the API, and the console.
pub(super) fn router<S: Store>(context: &ServiceContext<S>, parts: AdminParts) -> Router {
    let AdminParts { permission, facts, more } = parts;
    let api = AdminApi::new(context, facts);
    let unknown = Router::new().route("/v1/{*operation}", any(unknown));
    let reset = Router::new().route("/v1/reset", post(reset::post::<S>)).with_state(Arc::clone(&api));
    let files = Router::new().route("/v1/files", get(files::list::<S>)).with_state(Arc::clone(&api));
    let own = [
        (Needs::Read, reading(Arc::clone(&api))),
        (Needs::Read, unknown),
        (Needs::FullFromElsewhere, files),
        (Needs::Full, reset),
        (Needs::Full, recording::router(&api)),
        (Needs::FullFromElsewhere, trial::router(&api)),
    ];
    let open = console::router().merge(login::router(&permission, &context.audit));
    let guarded = own.into_iter().chain(more);
    guarded.fold(open, |router, (needs, routes)| router.merge(permission.guard(routes, needs)))
}

fn reading<S: Store>(api: Arc<AdminApi<S>>) -> Router {
    Router::new()
        .route("/v1/instance", get(instance::get::<S>))
        .route("/v1/instances", get(list_instances::<S>))
        .route("/v1/attention", get(attention::list::<S>))
        .route("/v1/rules", get(rules::list::<S>))
        .route("/v1/unmatched", get(unmatched::list::<S>))
        .route("/v1/hot", get(hot::list::<S>))
        .route("/v1/counters", get(counters::list::<S>))
        .route("/v1/why", post(why::ask::<S>))
        .route("/v1/stream", get(stream::get::<S>))
        .route("/v1/audit", get(list_audit::<S>))
        .route("/v1/openapi.json", get(openapi))
        .with_state(api)
}

async fn unknown(uri: Uri) -> Problem {
    let detail = format!("There is no operation {}; GET /v1/openapi.json lists them.", uri.path());
    Problem::new(StatusCode::NOT_FOUND, detail)
}

async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn list_instances<S: Store>(
    State(api): State<Arc<AdminApi<S>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let part = Query::parse(&uri, &[])?.part()?;
    let fleet = KnownFleet::read(&api).await?;
    api.aside(move |api| instances(api, fleet.as_ref(), part)).await
}

fn instances<S: Store>(api: &AdminApi<S>, fleet: Option<&KnownFleet>, part: ListPart) -> Value {
    let this = instance::in_short(api, true);
    let (all, scope, note) = match fleet {
        Some(fleet) => (fleet.instances(this), "fleet", None),
        None => (vec![this], "instance", Some("This is the instance that answers.")),
    };
    let (items, next) = part.of(all.into_iter());
    json!({ "items": items, "next": next, "scope": scope, "note": note })
}

async fn list_audit<S: Store>(State(api): State<Arc<AdminApi<S>>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::parse(&uri, &["kind"])?;
    let kind = match query.get("kind") {
        None => None,
        Some(name) => Some(ChangeKind::parse(name).ok_or_else(|| {
            Problem::malformed(format!("kind is '{name}', but must be rules, reset, recording or login."))
        })?),
    };
    let (changes, next) = query.part()?.of(api.context.audit.list(kind).into_iter());
    let items: Vec<Value> = changes.iter().map(AuditedChange::json).collect();
    Ok(answer::answer(&json!({ "items": items, "next": next })))
}

/// Reads a body of at most `most` bytes.
async fn read_body(
    client: &HttpClient,
    request: Request,
    most: usize,
) -> Result<(Bytes, AccountHold), Problem> {
    let too_large = || {
        let detail = format!("The body exceeds {most} bytes.");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    };
    let read = client.read_up_to(request.into_body(), most.max(MAX_MESSAGE)).await;
    let (body, hold) = read.map_err(|error| match error {
        BodyError::TooLarge => too_large(),
        error => Problem::new(error.status(), format!("{error}.")),
    })?;
    if body.len() > most { Err(too_large()) } else { Ok((body, hold)) }
}

impl fmt::Debug for AdminParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminParts").field("facts", &self.facts).finish_non_exhaustive()
    }
}
