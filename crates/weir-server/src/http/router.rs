//! The paths of the two HTTP ports.

use axum::{Router, routing::get};

use super::{
    access::{self, JsonAccess},
    context::ServiceContext,
    debug, health, metrics,
    pages::Pages,
};
use crate::bounds::RequestBounds;
use weir_store::Store;

/// The pages of `PORT`: `/json` and `/v1/acquire` as `access` allows, and `/healthcheck` and `/metrics` for everybody.
pub fn router<S: Store>(
    context: &ServiceContext<S>,
    bounds: RequestBounds,
    access: JsonAccess,
    pages: &Pages,
) -> Router {
    let health = get(health::check).with_state(context.health.clone());
    let metrics = metrics::route(&context.stats, context.metric_names.clone(), pages);
    let [json, acquire] = access::routes(access, context, bounds);
    Router::new()
        .route("/json", json)
        .route("/v1/acquire", acquire)
        .route("/healthcheck", health)
        .route("/metrics", metrics)
}

/// Returns the paths of `DEBUG_PORT`: `/`, which lists the others, and of `pages` `/stats`, `/rlconfig` and `/metrics`.
pub fn debug_router<S: Store>(context: &ServiceContext<S>, pages: &Pages) -> Router {
    let metrics = metrics::route(&context.stats, context.metric_names.clone(), pages);
    debug::router(context, pages).route("/metrics", metrics)
}
