//! `/v1/login`: a browser shows a token once, and gets a cookie.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{
        StatusCode,
        header::{CONTENT_TYPE, SET_COOKIE},
    },
    response::{IntoResponse as _, Response},
    routing::post,
};
use serde_json::{Value, json};

use super::{
    audit::{AuditTrail, AuditedChange, ChangeKind},
    cookie,
    permission::{Needs, Permission, RequestFacts},
    problem::Problem,
};
use crate::http::client::HttpClient;
use weir_limit::NANOS_PER_SECOND;

/// The largest body, in bytes.
const MAX_BODY: usize = 4 << 10;

pub(super) fn router(permission: &Arc<Permission>, audit: &Arc<AuditTrail>) -> Router {
    let routes = Router::new().route("/v1/login", post(log_in).delete(log_out));
    let state = (Arc::clone(permission), Arc::clone(audit));
    permission.guard(routes.with_state(state), Needs::Nothing)
}

async fn log_in(
    State((permission, audit)): State<(Arc<Permission>, Arc<AuditTrail>)>,
    Extension(client): Extension<HttpClient>,
    request: Request,
) -> Result<Response, Problem> {
    let facts = RequestFacts::of(&request);
    let (body, _hold) = super::read_body(&client, request, MAX_BODY).await?;
    let body: Value = serde_json::from_slice(&body)
        .map_err(|error| Problem::malformed(format!("The body is not JSON: {error}.")))?;
    let token = body
        .get("token")
        .and_then(Value::as_str)
        .filter(|_| body.as_object().is_some_and(|body| body.len() == 1));
    let Some(token) = token else {
        return Err(Problem::malformed("The body is not {\"token\": \"…\"}."));
    };
    let Some(token) = permission.log_in(&facts, token) else {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            "There are no tokens: WEIR_ADMIN_TOKEN_FILE is not set.",
        ));
    };
    let token = token?;
    let now = permission.clock().now();
    let end = now.after(cookie::LIFE);
    audit.add(AuditedChange {
        at: now,
        kind: ChangeKind::Login,
        who: token.name.clone().into(),
        what: format!("A browser has shown a token of the level {}.", token.level.name()),
        before: None,
        after: None,
    });
    let value = cookie::value(&token, end.as_nanos() / NANOS_PER_SECOND);
    let seconds = cookie::LIFE.as_nanos() / NANOS_PER_SECOND;
    let header = cookie::header(&value, seconds, facts.encryption.is_on());
    let body = json!({ "level": token.level.name(), "name": token.name, "until": super::time::text(end) });
    let body = body.to_string() + "\n";
    Ok(([(SET_COOKIE, &*header), (CONTENT_TYPE, "application/json")], body).into_response())
}

/// The cookie of any browser, whatever it has.
async fn log_out(request: Request) -> Response {
    let is_encrypted = RequestFacts::of(&request).encryption.is_on();
    let removed = cookie::header("", 0, is_encrypted);
    (StatusCode::NO_CONTENT, [(SET_COOKIE, removed)]).into_response()
}
