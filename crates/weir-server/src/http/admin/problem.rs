//! An error of the admin API: RFC 9457.

use axum::{
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde_json::json;
use weir_observe::text::{escaped, escaped_json, shortened};

/// The longest detail, in characters: it may have text of the caller.
const MAX_DETAIL: usize = 1_000;

const MEDIA_TYPE: &str = "application/problem+json";

/// What is wrong, in a sentence, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    detail: String,
    /// Seconds.
    retry_after: Option<u64>,
}

// === impl Problem ===

impl Problem {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after: None }
    }

    /// The request is malformed.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// Tells the caller to come again after so many `seconds`.
    pub fn too_many(detail: impl Into<String>, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let detail = escaped(&self.detail);
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "detail": shortened(&detail, MAX_DETAIL),
        });
        let body = escaped_json(&body.to_string()).into_owned() + "\n";
        let mut response = (self.status, [(CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let realm = HeaderValue::from_static("Bearer realm=\"weir\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, realm);
        }
        response
    }
}
