//! The HTTP doors: `PORT`, where requests are decided and health is asked for, and `DEBUG_PORT`, for people.

mod debug;
mod health;
mod json;
mod metrics;

use std::{fmt, future::Future, io, sync::Arc};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
    serve::ListenerExt as _,
};
use tokio::net::TcpListener;

pub use metrics::metrics_router;

use crate::{
    clock::Clock,
    limiter::Limiter,
    observe::{Health, Stats, prometheus::TimeUnit},
    server::headers::ResponseHeaders,
    store::Store,
};

/// Bytes that a request's body may have: as many as a gRPC message.
const MAX_BODY: usize = 4 << 20;

/// What the doors speak of.
pub struct Context<S> {
    /// Decides.
    pub limiter: Arc<Limiter<S>>,
    /// What `/metrics` and `/stats` tell.
    pub stats: Arc<Stats>,
    /// Asked for the time of each request.
    pub clock: Arc<dyn Clock>,
    /// What `/healthcheck` tells.
    pub health: Health,
    /// The headers of every response.
    pub headers: ResponseHeaders,
    /// How `/metrics` tells response times.
    pub time_unit: TimeUnit,
}

/// What `PORT` serves: `/json`, `/healthcheck` and `/metrics`.
pub fn router<S: Store>(context: &Context<S>) -> Router {
    let health = get(health::check).with_state(context.health.clone());
    let metrics = metrics::route(&context.stats, context.time_unit);
    let json = post(json::decide::<S>).with_state(Arc::new(json::Door::new(context.clone())));
    Router::new()
        .route("/json", json)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .route("/healthcheck", health)
        .route("/metrics", metrics)
}

/// What `DEBUG_PORT` serves: `/`, which lists the others, `/stats`, `/rlconfig` and `/metrics`.
pub fn debug_router<S: Store>(context: &Context<S>) -> Router {
    let metrics = metrics::route(&context.stats, context.time_unit);
    debug::router(context).route("/metrics", metrics)
}

/// Answers the connections of `listener` with `router` until `stop`; then accepts no more, and returns when those that
/// there are have their answers. How long that may take is the caller's to bound.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let listener = listener.tap_io(|connection| {
        // an answer is one small write, which must not wait for the acknowledgement of the one before
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps nagle's algorithm");
        }
    });
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

// === impl Context ===

/// Not derived: that would ask for a store that is `Clone`.
impl<S> Clone for Context<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: Arc::clone(&self.limiter),
            stats: Arc::clone(&self.stats),
            clock: Arc::clone(&self.clock),
            health: self.health.clone(),
            headers: self.headers.clone(),
            time_unit: self.time_unit,
        }
    }
}

impl<S> fmt::Debug for Context<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("health", &self.health).finish_non_exhaustive()
    }
}
