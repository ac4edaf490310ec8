//! `/json`: the gRPC method for callers without gRPC, in protobuf's JSON mapping.

use std::{
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    thread::available_parallelism,
    time::Instant,
};

use axum::{
    Extension,
    extract::{Request as HttpRequest, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use tokio::{runtime::Handle, sync::Semaphore, task::spawn_blocking};

use super::{client::HttpClient, context::ServiceContext};
use crate::{
    answer::encode,
    bounds::{RequestBounds, TooLarge},
    connections::{AccountHold, TooManyBytes},
    grpc::PREFIX,
    log,
    request::{MessageError, decoded},
};
use weir_export::trace::{RequestSpan, SpanCall};
use weir_limit::{Code, Request, Verdict};
use weir_limiter::LimitError;
use weir_observe::{MethodStats, throttle::Throttle};
use weir_proto as proto;
use weir_store::{Store, TakeOptions};

const REQUEST: &str = "envoy.service.ratelimit.v3.RateLimitRequest";
const RESPONSE: &str = "envoy.service.ratelimit.v3.RateLimitResponse";

/// Of all servers: it takes as much memory as thousands of counters.
static MESSAGES: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).expect("compiled by weir's own build"));

/// The memory of an object in JSON while it is decoded, in bytes: an estimate from above.
const OBJECT: usize = 256;

/// The bytes above which a body is decoded on a thread of its own: health checks on this thread would have to wait.
pub(super) const LARGE: usize = 64 << 10;

pub(super) struct JsonApi<S> {
    context: ServiceContext<S>,
    bounds: RequestBounds,
    calls: Arc<MethodStats>,
    /// Bounds the log of failed requests, which any caller can send in any number.
    failures: Throttle,
    /// The large bodies that may be decoded at a time: half of the processors stay free for others.
    turns: Arc<Semaphore>,
    request: MessageDescriptor,
    response: MessageDescriptor,
}

/// The response's body says why; all errors have the status of envoyproxy/ratelimit, whose body is only `Bad Request`.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    #[error("the body is not a {REQUEST} in JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error(transparent)]
    TooManyBytes(#[from] TooManyBytes),
}

/// A request whose client may leave. If it [ends](weir_limiter::Limiter::ends) others, it is decided nevertheless.
struct DecidedRequest<F: Future<Output = Response> + Send + 'static> {
    answer: Option<Pin<Box<F>>>,
    ends: Arc<AtomicBool>,
}

/// A `RateLimitResponse`, and whether it admits the request.
pub(super) struct JsonAnswer {
    pub(super) code: Code,
    pub(super) message: Bytes,
}

pub(super) async fn decide<S: Store>(
    State(api): State<Arc<JsonApi<S>>>,
    Extension(client): Extension<HttpClient>,
    request: HttpRequest,
) -> Response {
    let _call = api.calls.begin();
    let turns = Arc::clone(&api.turns);
    let tracer = api.context.tracer.as_ref();
    let now = api.context.clock.now();
    let span = tracer.and_then(|tracer| tracer.start(SpanCall::Json, Some(request.headers()), now));
    let (body, hold) = match client.read(request.into_body()).await {
        Ok(read) => read,
        Err(error) => {
            let response = error.into_response();
            if let Some(span) = span {
                span.end(response.status().as_u16().into(), Some("the body cannot be read"));
            }
            return response;
        }
    };
    let large = body.len() > LARGE;
    let (api, ends) = (Arc::clone(&api), Arc::new(AtomicBool::new(false)));
    let does_end = Arc::clone(&ends);
    let answer = async move { api.answer(&client, &body, hold, span, &does_end).await };
    if large {
        elsewhere(&turns, answer).await
    } else {
        DecidedRequest { answer: Some(Box::pin(answer)), ends }.await
    }
}

/// Runs `answer` on a thread that serves no connections, when one of `turns` is free.
async fn elsewhere(
    turns: &Arc<Semaphore>,
    answer: impl Future<Output = Response> + Send + 'static,
) -> Response {
    let Ok(turn) = Arc::clone(turns).acquire_owned().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let runtime = Handle::current();
    let answered = spawn_blocking(move || {
        let response = runtime.block_on(answer);
        drop(turn);
        response
    });
    answered.await.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot answer a request at /json");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
}

/// Counts braces outside of strings.
fn objects(json: &[u8]) -> usize {
    let (mut objects, mut in_string, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' if !in_string => objects += 1,
            _ => {}
        }
    }
    objects
}

// === impl DecidedRequest ===

impl<F: Future<Output = Response> + Send + 'static> Future for DecidedRequest<F> {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        let Some(answer) = &mut self.answer else { return Poll::Pending };
        let response = ready!(answer.as_mut().poll(context));
        self.answer = None;
        Poll::Ready(response)
    }
}

impl<F: Future<Output = Response> + Send + 'static> Drop for DecidedRequest<F> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take_if(|_| self.ends.load(Ordering::Relaxed))
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(answer));
        }
    }
}

// === impl JsonError ===

impl JsonError {
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge(_) | Self::Limit(LimitError::TooManyPatterns(_)) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooManyBytes(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

// === impl JsonApi ===

impl<S: Store> JsonApi<S> {
    /// Panics if weir was built without the descriptors of its own messages.
    pub(super) fn new(context: ServiceContext<S>, bounds: RequestBounds) -> Self {
        let message = |name| MESSAGES.get_message_by_name(name).expect("declared in weir's own proto files");
        let (request, response) = (message(REQUEST), message(RESPONSE));
        Self {
            calls: context.stats.method("json"),
            failures: Throttle::default(),
            turns: Arc::new(Semaphore::new(
                available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)),
            )),
            context,
            bounds,
            request,
            response,
        }
    }

    async fn answer(
        &self,
        client: &HttpClient,
        body: &[u8],
        mut hold: AccountHold,
        span: Option<Box<RequestSpan>>,
        ends: &AtomicBool,
    ) -> Response {
        match self.handle(body, &mut hold, span.as_deref(), ends).await {
            Ok(answer) => {
                let response = self.encode(&answer);
                if let Some(span) = span {
                    span.end(response.status().as_u16().into(), None);
                }
                response
            }
            Err(error) => {
                if let JsonError::TooLarge(error) = &error {
                    client.account().exceeded().add(error.bound());
                }
                let (status, error) = (error.status(), error.to_string());
                if let Some(span) = span {
                    span.end(status.as_u16().into(), Some(&error));
                }
                if let Some(suppressed) = self.failures.admit(Instant::now()) {
                    let error = log::bounded(&error);
                    tracing::warn!(%error, suppressed, "request at /json failed");
                }
                (status, error + "\n").into_response()
            }
        }
    }

    /// Sets `ends`, before it waits, if the request has to be decided whatever becomes of its client.
    pub(super) async fn handle(
        &self,
        body: &[u8],
        hold: &mut AccountHold,
        span: Option<&RequestSpan>,
        ends: &AtomicBool,
    ) -> Result<JsonAnswer, JsonError> {
        let now = self.context.clock.now();
        self.check_size(body, hold)?;
        let message = self.decode(body)?;
        let request = self.request(&message)?;
        ends.store(self.context.limiter.ends(&request), Ordering::Relaxed);
        let options = TakeOptions {
            record: span.map(RequestSpan::record),
            takes_names: true,
            ..TakeOptions::default()
        };
        let decided = self.context.limiter.decide_with(&request, now, options, |verdict| {
            log::decision(&request, verdict);
            if let Some(span) = span {
                span.decided(&request, verdict);
            }
            self.answer_of(verdict)
        });
        Ok(decided.await?)
    }

    pub(super) fn answer_of(&self, verdict: &Verdict<'_>) -> JsonAnswer {
        let message = encode(verdict, &self.context.headers.render(verdict)).slice(PREFIX..);
        JsonAnswer { code: verdict.code, message }
    }

    pub(super) const fn context(&self) -> &ServiceContext<S> {
        &self.context
    }

    pub(super) fn check_size(&self, body: &[u8], hold: &mut AccountHold) -> Result<(), JsonError> {
        let objects = objects(body);
        // before they take memory: the request, two objects for a descriptor and its override, and one for an entry
        if objects > 1 + 2 * self.bounds.descriptors + self.bounds.entries {
            return Err(TooLarge::Descriptors(self.bounds.descriptors).into());
        }
        Ok(hold.grow_to(2 * body.len() + objects * OBJECT)?)
    }

    pub(super) fn decode(&self, body: &[u8]) -> Result<Vec<u8>, JsonError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        // rejects unknown fields, like the reference
        let message = DynamicMessage::deserialize(self.request.clone(), &mut json)?;
        json.end()?;
        Ok(message.encode_to_vec())
    }

    pub(super) fn message(&self, json: serde_json::Value) -> Result<Vec<u8>, JsonError> {
        Ok(DynamicMessage::deserialize(self.request.clone(), json)?.encode_to_vec())
    }

    pub(super) fn request<'a>(&self, message: &'a [u8]) -> Result<Request<'a>, JsonError> {
        decoded(message, &self.bounds).map_err(|error| match error {
            MessageError::TooLarge(error) => error.into(),
            error => {
                self.context.stats.service_error.add(1);
                error.into()
            }
        })
    }

    /// With the fields in the order of their names.
    pub(super) fn json(&self, answer: &JsonAnswer) -> Result<serde_json::Value, String> {
        serde_json::to_value(self.dynamic(answer)?).map_err(|error| error.to_string())
    }

    fn dynamic(&self, answer: &JsonAnswer) -> Result<DynamicMessage, String> {
        let message = DynamicMessage::decode(self.response.clone(), &*answer.message);
        message.map_err(|error| error.to_string())
    }

    pub(super) fn encode(&self, answer: &JsonAnswer) -> Response {
        let status = match answer.code {
            Code::Ok => StatusCode::OK,
            Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        };
        // with the fields in the order of their numbers, as envoyproxy/ratelimit writes them
        let json = self
            .dynamic(answer)
            .and_then(|message| serde_json::to_string(&message).map_err(|error| error.to_string()));
        match json {
            Ok(json) => (status, [(CONTENT_TYPE, "application/json")], json).into_response(),
            Err(error) => {
                tracing::error!(error, "cannot encode a response at /json");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

#[cfg(any(debug_assertions, fuzzing))]
impl<S> JsonApi<S> {
    pub(super) fn json_of(&self, request: &[u8]) -> String {
        let message = DynamicMessage::decode(self.request.clone(), request);
        serde_json::to_string(&message.expect("a message")).expect("JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_in_strings_are_no_objects() {
        assert_eq!(objects(br#"{"descriptors": [{}, {"entries": [{"key": "a{b", "value": "\"{\\"}]}]}"#), 4);
        assert_eq!(objects(b"{{{"), 3);
        assert_eq!(objects(br"\{"), 1);
    }
}
