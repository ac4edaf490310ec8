//! The paths of the two HTTP ports.

use axum::{Router, routing::get};

use super::{
    access::{self, JsonAccess},
    context::ServiceContext,
    debug, health, metrics,
};
use crate::{server::bounds::RequestBounds, store::Store};

/// Returns the pages of `PORT`: `/json`, whose requests are within `bounds`, for those who have `access`; `/healthcheck` and
/// `/metrics` for everybody.
pub fn router<S: Store>(context: &ServiceContext<S>, bounds: RequestBounds, access: JsonAccess) -> Router {
    let health = get(health::check).with_state(context.health.clone());
    let metrics = metrics::route(&context.stats, context.metric_names.clone());
    let json = access::route(access, context, bounds);
    Router::new().route("/json", json).route("/healthcheck", health).route("/metrics", metrics)
}

/// Returns the pages of `DEBUG_PORT`: `/`, which lists the others, `/stats`, `/rlconfig` and `/metrics`.
pub fn debug_router<S: Store>(context: &ServiceContext<S>) -> Router {
    let metrics = metrics::route(&context.stats, context.metric_names.clone());
    debug::router(context).route("/metrics", metrics)
}
