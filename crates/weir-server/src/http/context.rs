use std::{fmt, sync::Arc};

use super::admin::AuditTrail;
use crate::{headers::ResponseHeaders, health::Health};
use weir_export::{prometheus::MetricNames, trace::Tracer};
use weir_limiter::Limiter;
use weir_observe::Stats;
use weir_store::clock::Clock;

/// The state that the pages of the HTTP servers share.
pub struct ServiceContext<S> {
    /// Decides `/json`.
    pub limiter: Arc<Limiter<S>>,
    /// Shown by `/metrics` and `/stats`.
    pub stats: Arc<Stats>,
    pub clock: Arc<dyn Clock>,
    /// Shown by `/healthcheck`.
    pub health: Health,
    pub headers: ResponseHeaders,
    /// Traces requests at `/json`; none if requests are not traced.
    pub tracer: Option<Arc<Tracer>>,
    pub metric_names: MetricNames,
    /// The changes that were made.
    pub audit: Arc<AuditTrail>,
}

/// Not derived: that would require a store that is `Clone`.
impl<S> Clone for ServiceContext<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            stats: Arc::clone(&self.stats),
            clock: Arc::clone(&self.clock),
            health: self.health.clone(),
            headers: self.headers.clone(),
            tracer: self.tracer.clone(),
            metric_names: self.metric_names.clone(),
            audit: Arc::clone(&self.audit),
        }
    }
}

impl<S> fmt::Debug for ServiceContext<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceContext").field("health", &self.health).finish_non_exhaustive()
    }
}
