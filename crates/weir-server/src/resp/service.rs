use std::{fmt, sync::Arc, time::Instant};

use super::{auth::Auth, stats::RespStats};
use crate::connections::Connections;
use weir_export::trace::Tracer;
use weir_limit::KeyHasher;
use weir_limiter::Limiter;
use weir_observe::{Stats, throttle::Throttle};
use weir_store::clock::Clock;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceSettings {
    /// `WEIR_REDIS_AUTH`: what clients have to give; none to admit any.
    pub auth: Option<Auth>,
    /// `WEIR_REDIS_RESET`: whether clients may reset the counters of rules.
    pub allows_reset: bool,
}

pub struct Service<S> {
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) settings: ServiceSettings,
    pub(super) connections: Arc<Connections>,
    pub(super) stats: Arc<RespStats>,
    /// Kept for the life of the process: buckets are found by the keys that it makes.
    pub(super) hasher: KeyHasher,
    pub(super) started: Instant,
    pub(super) tracer: Option<Arc<Tracer>>,
    /// Bound the messages about clients of another protocol, and failed authentication.
    pub(super) rejected: Throttle,
    pub(super) auth_failed: Throttle,
}

impl<S> Service<S> {
    /// Returns a service whose connections are among `connections`, and its metrics among `stats`.
    pub fn new(
        limiter: Arc<Limiter<S>>,
        clock: Arc<dyn Clock>,
        stats: &Stats,
        settings: ServiceSettings,
        connections: Arc<Connections>,
    ) -> Self {
        let own = Arc::<RespStats>::default();
        stats.register(&own);
        Self {
            limiter,
            clock,
            settings,
            connections,
            stats: own,
            hasher: KeyHasher::random(),
            started: Instant::now(),
            tracer: None,
            rejected: Throttle::default(),
            auth_failed: Throttle::default(),
        }
    }

    pub fn with_tracer(self, tracer: Option<Arc<Tracer>>) -> Self {
        Self { tracer, ..self }
    }
}

impl<S> fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
