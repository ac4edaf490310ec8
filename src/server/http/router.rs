//! The paths of the two HTTP ports, and serving them.

use std::{future::Future, io, sync::Arc};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
    serve::ListenerExt as _,
};
use tokio::net::TcpListener;

use super::{
    context::ServiceContext,
    debug, health,
    json::{self, JsonApi},
    metrics,
};
use crate::store::Store;

/// The largest body of a request in bytes: the same as for a gRPC message.
const MAX_BODY: usize = 4 << 20;

/// Returns the pages of `PORT`: `/json`, `/healthcheck` and `/metrics`.
pub fn router<S: Store>(context: &ServiceContext<S>) -> Router {
    let health = get(health::check).with_state(context.health.clone());
    let metrics = metrics::route(&context.stats, context.metric_names.clone());
    let json = post(json::decide::<S>).with_state(Arc::new(JsonApi::new(context.clone())));
    Router::new()
        .route("/json", json)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .route("/healthcheck", health)
        .route("/metrics", metrics)
}

/// Returns the pages of `DEBUG_PORT`: `/`, which lists the others, `/stats`, `/rlconfig` and `/metrics`.
pub fn debug_router<S: Store>(context: &ServiceContext<S>) -> Router {
    let metrics = metrics::route(&context.stats, context.metric_names.clone());
    debug::router(context).route("/metrics", metrics)
}

/// Serves the connections of `listener` with `router` until `stop`; then accepts no more, and returns when the open requests
/// have their responses. The caller bounds that time.
///
/// # Errors
///
/// Those of `axum::serve`, which currently returns none.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let listener = listener.tap_io(|connection| {
        // a response is one small write, which must not wait for the acknowledgement of the previous one
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "cannot disable nagle's algorithm on a connection");
        }
    });
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}
