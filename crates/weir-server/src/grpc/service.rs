//! `ShouldRateLimit`: decode, decide, encode; directly on bytes, without generated message types.

use std::{
    fmt,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::RecvStream;
use http::Request;
use tonic::{Code, Status};

use super::{acquire::AcquireService, call_headers, message, status::of_limit_error};
use crate::{
    answer::encode,
    bounds::{Bound, Exceeded, RequestBounds},
    connections::ConnectionAccount,
    headers::ResponseHeaders,
    log,
    request::{MessageError, decode},
};
use weir_export::trace::{RequestSpan, SpanCall, Tracer};
use weir_limit::{self as limit, InFlightVerdict, Timestamp};
use weir_limiter::Limiter;
use weir_observe::{MethodStats, Stats};
use weir_store::{Store, TakeOptions, clock::Clock};

pub struct Service<S> {
    limiter: Arc<Limiter<S>>,
    clock: Arc<dyn Clock>,
    stats: Arc<MethodStats>,
    headers: ResponseHeaders,
    bounds: RequestBounds,
    exceeded: Arc<Exceeded>,
    tracer: Option<Arc<Tracer>>,
}

/// A response with gRPC's message prefix.
pub(super) struct RpcAnswer {
    pub(super) message: Bytes,
    /// The request in flight that it names, if there is one.
    pub(super) begun: Option<Box<BegunRequest>>,
}

/// A request in flight that began with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BegunRequest {
    pub(super) domain: Box<str>,
    pub(super) name: Box<str>,
}

/// The weight of a message above which its connection holds it while it is decided. Most messages are smaller.
const LIGHT: usize = 64 << 10;

impl<S: Store> Service<S> {
    pub(super) const PATH: &'static str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

    pub fn new(
        limiter: Arc<Limiter<S>>,
        clock: Arc<dyn Clock>,
        stats: &Stats,
        headers: ResponseHeaders,
    ) -> Self {
        let (bounds, exceeded) = (RequestBounds::default(), Arc::default());
        let stats = stats.method("ShouldRateLimit");
        Self { limiter, clock, stats, headers, bounds, exceeded, tracer: None }
    }

    pub fn with_bounds(self, bounds: RequestBounds, exceeded: Arc<Exceeded>) -> Self {
        Self { bounds, exceeded, ..self }
    }

    pub fn with_tracer(self, tracer: Option<Arc<Tracer>>) -> Self {
        Self { tracer, ..self }
    }

    pub fn acquire_service(&self) -> AcquireService<S> {
        AcquireService::new(Arc::clone(&self.limiter), Arc::clone(&self.clock), self.bounds)
    }

    /// Whether answers may name requests in flight.
    pub(super) fn may_name(&self) -> bool {
        self.limiter.has_places()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn stats(&self) -> &MethodStats {
        &self.stats
    }

    /// Returns the response with gRPC's message prefix. A call that does not arrive at once is decided as of its end,
    /// not `now`. Until it is decided, `account` holds what it takes. No decision waits longer than the caller does.
    pub(super) async fn handle(
        &self,
        call: &mut Request<RecvStream>,
        now: Timestamp,
        account: &Arc<ConnectionAccount>,
        arrival: Duration,
    ) -> Result<RpcAnswer, Status> {
        let span =
            self.tracer.as_ref().and_then(|tracer| tracer.start(SpanCall::Rpc, Some(call.headers()), now));
        let response = async {
            let mut wait = call_headers::longest_wait(call.headers())?;
            let (read, now) = {
                let mut reading = pin!(message::read(call, account, arrival));
                if let Some(read) = reading.as_mut().now_or_never() {
                    (read, now)
                } else {
                    let begun = Instant::now();
                    let read = reading.await;
                    wait = wait.map(|wait| wait.saturating_sub(begun.elapsed()));
                    // its end may come much later than its beginning: the hits would count in the past
                    (read, self.now())
                }
            };
            let (sent, _hold) = read?;
            let message = message::unpack(&sent, call.headers()).inspect_err(|status| {
                if status.code() == Code::ResourceExhausted {
                    account.exceeded().add(Bound::MessageBytes);
                }
            })?;
            // a decision may wait, and needs none of them
            drop(std::mem::take(call.headers_mut()));
            let weight = self.bounds.weight(message.len());
            let _hold = if weight > LIGHT { Some(account.hold(weight)?) } else { None };
            self.decide_within(&message, now, span.as_deref(), wait).await
        }
        .await;
        if let Some(span) = span {
            let failed = response.as_ref().err();
            span.end(failed.map_or(0, |status| i32::from(status.code()).into()), failed.map(Status::message));
        }
        response
    }

    /// Does all of a request but HTTP/2. The response has gRPC's message prefix. `span` gets how it was decided.
    pub async fn decide(
        &self,
        message: &[u8],
        now: Timestamp,
        span: Option<&RequestSpan>,
    ) -> Result<Bytes, Status> {
        self.decide_within(message, now, span, None).await.map(|answered| answered.message)
    }

    /// Ends `begun`, since its caller has left without the answer.
    pub(super) async fn undo(&self, begun: &BegunRequest) {
        self.limiter.undo(&begun.domain, &begun.name, self.now()).await;
    }

    async fn decide_within(
        &self,
        message: &[u8],
        now: Timestamp,
        span: Option<&RequestSpan>,
        wait: Option<Duration>,
    ) -> Result<RpcAnswer, Status> {
        let mut request = limit::Request::default();
        decode(message, &self.bounds, &mut request).map_err(|error| self.rejected(error))?;
        let options = TakeOptions { record: span.map(RequestSpan::record), wait, takes_names: true };
        let response = self.limiter.decide_with(&request, now, options, |verdict| {
            log::decision(&request, verdict);
            if let Some(span) = span {
                span.decided(&request, verdict);
            }
            let message = encode(verdict, &self.headers.render(verdict));
            let begun = verdict.in_flight.as_ref().and_then(|places| BegunRequest::of(&request, places));
            RpcAnswer { message, begun }
        });
        response.await.map_err(|error| of_limit_error(&error))
    }

    #[cold]
    fn rejected(&self, error: MessageError) -> Status {
        if let MessageError::TooLarge(error) = &error {
            self.exceeded.add(error.bound());
        }
        error.into()
    }
}

// === impl RpcAnswer ===

impl RpcAnswer {
    pub(super) const fn of(message: Bytes) -> Self {
        Self { message, begun: None }
    }
}

// === impl BegunRequest ===

impl BegunRequest {
    #[cold]
    fn of(request: &limit::Request<'_>, places: &InFlightVerdict<'_>) -> Option<Box<Self>> {
        let name = places.name.as_deref()?;
        Some(Box::new(Self::new(request.domain, name)))
    }

    /// The memory that it takes, in bytes.
    pub(super) const fn weight(&self) -> usize {
        size_of::<Self>() + self.domain.len() + self.name.len()
    }

    pub(super) fn new(domain: &str, name: &str) -> Self {
        Self { domain: domain.into(), name: name.into() }
    }
}

impl<S> fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
