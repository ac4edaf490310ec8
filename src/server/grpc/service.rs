//! `ShouldRateLimit`: decode, decide, encode; directly on bytes, without generated message types.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use h2::RecvStream;
use http::Request;
use tonic::Status;

use super::{
    decode::decode,
    encode::{Buffer, encode},
    message::{self, PREFIX},
};
use crate::{
    Limiter,
    clock::Clock,
    limit::Timestamp,
    observe::{MethodStats, Stats},
    server::{headers::ResponseHeaders, log},
    store::Store,
};

/// The `RateLimitService`, on a limiter.
pub struct Service<S> {
    limiter: Arc<Limiter<S>>,
    clock: Arc<dyn Clock>,
    stats: Arc<MethodStats>,
    headers: ResponseHeaders,
}

impl<S: Store> Service<S> {
    /// The path of its method.
    pub(super) const PATH: &'static str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

    /// Returns a service on `limiter` that reads the time from `clock` and adds `headers` to responses.
    #[must_use]
    pub fn new(
        limiter: Arc<Limiter<S>>,
        clock: Arc<dyn Clock>,
        stats: &Stats,
        headers: ResponseHeaders,
    ) -> Self {
        Self { limiter, clock, stats: stats.method("ShouldRateLimit"), headers }
    }

    /// Returns the time of decisions.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the stats of its method.
    pub(super) fn stats(&self) -> &MethodStats {
        &self.stats
    }

    /// Handles `call` as of `now`, and returns the response with gRPC's message prefix.
    pub(super) async fn handle(
        &self,
        mut call: Request<RecvStream>,
        now: Timestamp,
    ) -> Result<Bytes, Status> {
        let sent = message::read(call.body_mut()).await?;
        let message = message::unpack(&sent, call.headers())?;
        self.decide(&message, now).await
    }

    /// Decides `message`, an encoded `RateLimitRequest`, as of `now`, and returns the `RateLimitResponse` with gRPC's message
    /// prefix. Includes all the work of a request except HTTP/2.
    ///
    /// # Errors
    ///
    /// The status for the caller: the message is malformed, or it could not be decided.
    pub async fn decide(&self, message: &[u8], now: Timestamp) -> Result<Bytes, Status> {
        let request = decode(message)?;
        let response = self.limiter.decide(&request, now, |verdict| {
            log::decision(&request, verdict);
            let mut out = Buffer::from_slice(&[0; PREFIX]);
            encode(verdict, &self.headers.render(verdict), &mut out);
            // the size of a response is proportional to its request's, whose bound is far below u32::MAX
            let length = u32::try_from(out.len() - PREFIX).unwrap_or(u32::MAX);
            out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
            Bytes::copy_from_slice(&out)
        });
        Ok(response.await?)
    }
}

impl<S> fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
