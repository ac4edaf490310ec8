//! `ShouldRateLimit`: decode, decide, encode.

use std::{fmt, sync::Arc};

use tonic::Status;

use crate::{
    Limiter,
    clock::Clock,
    limit::Request,
    observe::{Stats, stats::MethodStats},
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
    },
    store::Store,
};

/// Answers Envoy.
pub struct Service<S> {
    limiter: Arc<Limiter<S>>,
    clock: Arc<dyn Clock>,
    stats: Arc<MethodStats>,
}

impl<S: Store> Service<S> {
    /// Answers with what `limiter` decides at the time that `clock` shows.
    #[must_use]
    pub fn new(limiter: Arc<Limiter<S>>, clock: Arc<dyn Clock>, stats: &Stats) -> Self {
        Self { limiter, clock, stats: stats.method("ShouldRateLimit") }
    }

    async fn answer(&self, message: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let now = self.clock.now();
        let request = Request::try_from(message)?;
        let answer = self.limiter.decide(&request, now, |verdict| RateLimitResponse::from(verdict)).await;
        Ok(answer?)
    }
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Service<S> {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let _call = self.stats.begin();
        let answer = self.answer(request.get_ref()).await;
        answer.map(tonic::Response::new).inspect_err(|status| {
            tracing::debug!(code = ?status.code(), message = status.message(), "a request was not decided");
        })
    }
}

impl<S> fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
