//! `POST /v1/acquire`: `/json` for callers that wait. `POST /v1/release` ends what it has begun.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension,
    extract::{Request as HttpRequest, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};

use super::{
    client::HttpClient,
    json::{JsonAnswer, JsonApi, JsonError, LARGE},
};
use crate::{connections::AccountHold, log, request_token, wait};
use weir_limit::{Code, Hits, Period, line::Rejection};
use weir_limiter::{AcquireError, LimitError};
use weir_observe::throttle::Throttle;
use weir_store::{Store, StoreError};

const MAX_WAIT: &str = "maxWait";

pub(super) struct AcquireApi<S> {
    json: Arc<JsonApi<S>>,
    failures: Throttle,
}

#[derive(Debug, thiserror::Error)]
enum AcquireFailure {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("the body exceeds {LARGE} bytes: a request that waits has one descriptor")]
    TooLarge,
    #[error("the body is not a JSON object: {0}")]
    Syntax(serde_json::Error),
    #[error("{MAX_WAIT} is {0}; write a duration such as \"200ms\" or \"1.5s\"")]
    MaxWait(Value),
    #[error("token is not one of a request in flight; send that of a response of /v1/acquire")]
    Token,
    #[error("cost is {0}; write a whole number, such as 1200")]
    Cost(Value),
    #[error("unknown field {0}; a release has token and cost")]
    Unknown(String),
    #[error(transparent)]
    Acquire(#[from] AcquireError),
}

struct Answered {
    response: JsonAnswer,
    status: StatusCode,
    /// The fields beside those of a response at `/json`.
    fields: Vec<(&'static str, String)>,
}

pub(super) async fn acquire<S: Store>(
    State(api): State<Arc<AcquireApi<S>>>,
    Extension(client): Extension<HttpClient>,
    request: HttpRequest,
) -> Response {
    let (body, mut hold) = match client.read(request.into_body()).await {
        Ok(read) => read,
        Err(error) => return error.into_response(),
    };
    let answered = api.answer(&body, &mut hold).await;
    answered.unwrap_or_else(|failure| api.failed(&failure, &client, "/v1/acquire"))
}

pub(super) async fn release<S: Store>(
    State(api): State<Arc<AcquireApi<S>>>,
    Extension(client): Extension<HttpClient>,
    request: HttpRequest,
) -> Response {
    let (body, _hold) = match client.read(request.into_body()).await {
        Ok(read) => read,
        Err(error) => return error.into_response(),
    };
    match api.release(&body).await {
        Ok(()) => ([(CONTENT_TYPE, "application/json")], "{}").into_response(),
        Err(failure) => api.failed(&failure, &client, "/v1/release"),
    }
}

// === impl AcquireApi ===

impl<S: Store> AcquireApi<S> {
    pub(super) fn new(json: Arc<JsonApi<S>>) -> Self {
        Self { json, failures: Throttle::default() }
    }

    fn failed(&self, failure: &AcquireFailure, client: &HttpClient, page: &str) -> Response {
        if let AcquireFailure::Json(JsonError::TooLarge(error)) = &failure {
            client.account().exceeded().add(error.bound());
        }
        let (status, error) = (failure.status(), failure.to_string());
        if let Some(suppressed) = self.failures.admit(Instant::now()) {
            let error = log::bounded(&error);
            tracing::warn!(%error, suppressed, "request at {page} failed");
        }
        (status, error + "\n").into_response()
    }

    async fn release(&self, body: &[u8]) -> Result<(), AcquireFailure> {
        if body.len() > LARGE {
            return Err(AcquireFailure::TooLarge);
        }
        let mut fields: Map<String, Value> = serde_json::from_slice(body).map_err(AcquireFailure::Syntax)?;
        let token = fields.remove("token");
        let cost = match fields.remove("cost") {
            None => None,
            // JSON of protobuf has large numbers as text
            Some(cost) => match cost.as_u64().or_else(|| cost.as_str()?.parse().ok()) {
                Some(cost) => Some(Hits(cost)),
                None => return Err(AcquireFailure::Cost(cost)),
            },
        };
        if let Some(field) = fields.keys().next() {
            return Err(AcquireFailure::Unknown(field.clone()));
        }
        let running = token.as_ref().and_then(Value::as_str).and_then(request_token::read);
        let (domain, name) = running.ok_or(AcquireFailure::Token)?;
        let context = self.json.context();
        let ended = context.limiter.end_request(domain.into(), name.into(), cost, context.clock.now()).await;
        ended.map_err(|error| AcquireError::from(error).into())
    }

    async fn answer(&self, body: &[u8], hold: &mut AccountHold) -> Result<Response, AcquireFailure> {
        if body.len() > LARGE {
            return Err(AcquireFailure::TooLarge);
        }
        self.json.check_size(body, hold)?;
        let mut fields: Map<String, Value> = serde_json::from_slice(body).map_err(AcquireFailure::Syntax)?;
        let max_wait = match fields.remove(MAX_WAIT) {
            None => Period::default(),
            Some(Value::String(text)) => {
                wait::parse(&text).ok_or(AcquireFailure::MaxWait(Value::String(text)))?
            }
            Some(other) => return Err(AcquireFailure::MaxWait(other)),
        };
        let message = self.json.message(Value::Object(fields))?;
        let context = self.json.context();
        let request = self.json.request(&message)?;
        let acquired = context.limiter.acquire(&request, max_wait, &*context.clock, |verdict, acquired| {
            log::decision(&request, verdict);
            let response = self.json.answer_of(verdict);
            let (reason, retry_after) = match acquired.rejection {
                None => {
                    let mut fields = vec![("waited", wait::duration(acquired.waited).to_string())];
                    let name = acquired.name.as_deref();
                    fields.extend(name.map(|name| ("token", request_token::write(request.domain, name))));
                    let is_ok = verdict.code == Code::Ok;
                    let status = if is_ok { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
                    return Answered { response, status, fields };
                }
                Some(Rejection::Timeout { retry_after }) => ("timeout", Some(retry_after)),
                Some(Rejection::Full { retry_after }) => ("full", Some(retry_after)),
                Some(Rejection::Never) => ("never", None),
                Some(Rejection::Closed) => ("closed", None),
            };
            let mut fields = vec![("reason", reason.to_owned())];
            fields.extend(
                retry_after.map(|retry_after| ("retryAfter", wait::duration(retry_after).to_string())),
            );
            let is_closed = acquired.rejection == Some(Rejection::Closed);
            let status =
                if is_closed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
            Answered { response, status, fields }
        });
        let Answered { response, status, fields } = acquired.await?;
        let mut json = self.json.json(&response);
        if let Ok(Value::Object(object)) = &mut json {
            object.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
        }
        Ok(match json {
            Ok(json) => (status, [(CONTENT_TYPE, "application/json")], json.to_string()).into_response(),
            Err(error) => {
                tracing::error!(error, "cannot encode a response at /v1/acquire");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        })
    }
}

// === impl AcquireFailure ===

impl AcquireFailure {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Json(error) => error.status(),
            Self::TooLarge | Self::Acquire(AcquireError::Limit(LimitError::TooManyPatterns(_))) => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            Self::Acquire(AcquireError::Limit(
                LimitError::NoRules | LimitError::Store(StoreError::Unavailable(_)),
            )) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Syntax(_)
            | Self::MaxWait(_)
            | Self::Token
            | Self::Cost(_)
            | Self::Unknown(_)
            | Self::Acquire(_) => StatusCode::BAD_REQUEST,
        }
    }
}
