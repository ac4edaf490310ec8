//! `/json`: the gRPC method for callers without gRPC, in protobuf's JSON mapping.

use std::{sync::Arc, time::Instant};

use axum::{
    body::Bytes,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use super::context::ServiceContext;
use crate::{
    limit::Request,
    limiter::LimitError,
    observe::{MethodStats, throttle::Throttle},
    proto::{
        self,
        envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
    },
    server::{
        conversion::{ConversionError, response},
        log,
    },
    store::Store,
};

const REQUEST: &str = "envoy.service.ratelimit.v3.RateLimitRequest";
const RESPONSE: &str = "envoy.service.ratelimit.v3.RateLimitResponse";

/// Decides the requests at `/json`.
pub(super) struct JsonApi<S> {
    context: ServiceContext<S>,
    calls: Arc<MethodStats>,
    /// Bounds the log of failed requests, which any caller can send in any number.
    failures: Throttle,
    request: MessageDescriptor,
    response: MessageDescriptor,
}

/// Why a request failed. The body of the response says why; all errors have the status of envoyproxy/ratelimit, whose body is
/// only `Bad Request`.
#[derive(Debug, thiserror::Error)]
enum JsonError {
    #[error("the body is not a {REQUEST} in JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// Unexpected: the JSON was parsed by the message's own descriptor.
    #[error("the body is not a {REQUEST}: {0}")]
    Message(#[from] prost::DecodeError),
    #[error(transparent)]
    Conversion(#[from] ConversionError),
    #[error(transparent)]
    Limit(#[from] LimitError),
}

pub(super) async fn decide<S: Store>(State(api): State<Arc<JsonApi<S>>>, body: Bytes) -> Response {
    let _call = api.calls.begin();
    match api.handle(&body).await {
        Ok(response) => api.encode(&response),
        Err(error) => {
            let error = error.to_string();
            if let Some(suppressed) = api.failures.admit(Instant::now()) {
                let error = log::one_line(&error);
                tracing::warn!(%error, suppressed, "request at /json failed");
            }
            (StatusCode::BAD_REQUEST, error + "\n").into_response()
        }
    }
}

// === impl JsonApi ===

impl<S: Store> JsonApi<S> {
    /// # Panics
    ///
    /// If weir was built without the descriptors of its own messages.
    pub(super) fn new(context: ServiceContext<S>) -> Self {
        let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("compiled by weir's own build");
        let message = |name| pool.get_message_by_name(name).expect("declared in weir's own proto files");
        let (request, response) = (message(REQUEST), message(RESPONSE));
        Self {
            calls: context.stats.method("json"),
            failures: Throttle::default(),
            context,
            request,
            response,
        }
    }

    async fn handle(&self, body: &[u8]) -> Result<RateLimitResponse, JsonError> {
        let now = self.context.clock.now();
        let message = self.decode(body)?;
        let request = Request::try_from(&message).inspect_err(|_| self.context.stats.service_error.add(1))?;
        let headers = &self.context.headers;
        let decided = self.context.limiter.decide(&request, now, |verdict| {
            log::decision(&request, verdict);
            response(verdict, &headers.render(verdict))
        });
        Ok(decided.await?)
    }

    fn decode(&self, body: &[u8]) -> Result<RateLimitRequest, JsonError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        // rejects unknown fields, like the reference
        let message = DynamicMessage::deserialize(self.request.clone(), &mut json)?;
        json.end()?;
        Ok(message.transcode_to()?)
    }

    fn encode(&self, response: &RateLimitResponse) -> Response {
        let status = match response.overall_code() {
            Code::Ok => StatusCode::OK,
            Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
            Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let json = DynamicMessage::decode(self.response.clone(), response.encode_to_vec().as_slice())
            .map_err(|error| error.to_string())
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
