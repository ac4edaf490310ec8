//! `ShouldRateLimit`: decode, decide, encode; on the caller's bytes, without a message in between.

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
    observe::{Stats, stats::MethodStats},
    server::headers::ResponseHeaders,
    store::Store,
};

/// Answers Envoy.
pub struct Service<S> {
    limiter: Arc<Limiter<S>>,
    clock: Arc<dyn Clock>,
    stats: Arc<MethodStats>,
    headers: ResponseHeaders,
}

impl<S: Store> Service<S> {
    /// Where its method is called.
    pub(super) const PATH: &'static str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

    /// Answers with what `limiter` decides at the time that `clock` shows, and with these `headers`.
    #[must_use]
    pub fn new(
        limiter: Arc<Limiter<S>>,
        clock: Arc<dyn Clock>,
        stats: &Stats,
        headers: ResponseHeaders,
    ) -> Self {
        Self { limiter, clock, stats: stats.method("ShouldRateLimit"), headers }
    }

    /// The time that decisions are made at.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What is counted of its calls.
    pub(super) fn stats(&self) -> &MethodStats {
        &self.stats
    }

    /// The answer to `call` as of `now`: a message, as gRPC frames it.
    pub(super) async fn answer(
        &self,
        mut call: Request<RecvStream>,
        now: Timestamp,
    ) -> Result<Bytes, Status> {
        let sent = message::read(call.body_mut()).await?;
        let message = message::unpack(&sent, call.headers())?;
        self.decide(&message, now).await
    }

    /// The answer to `message`, a `RateLimitRequest` in bytes, as of `now`: a `RateLimitResponse` with gRPC's prefix in
    /// front. All that a request costs besides HTTP/2.
    ///
    /// # Errors
    ///
    /// The status that the caller is told: that the message is none, or why it was not decided.
    pub async fn decide(&self, message: &[u8], now: Timestamp) -> Result<Bytes, Status> {
        let request = decode(message)?;
        let answer = self.limiter.decide(&request, now, |verdict| {
            let mut out = Buffer::from_slice(&[0; PREFIX]);
            encode(verdict, &self.headers.render(verdict), &mut out);
            // a message is at most as long as its request made it, which has a bound far below this
            let length = u32::try_from(out.len() - PREFIX).unwrap_or(u32::MAX);
            out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
            Bytes::copy_from_slice(&out)
        });
        Ok(answer.await?)
    }
}

impl<S> fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
