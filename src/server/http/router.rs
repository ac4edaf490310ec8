//! The paths of the two HTTP ports.

use std::sync::Arc;

use axum::{
    Router,
    routing::{get, post},
};

use super::{
    context::ServiceContext,
    debug, health,
    json::{self, JsonApi},
    metrics,
    pages::Pages,
};
use crate::{server::bounds::RequestBounds, store::Store};

/// Returns the paths of `PORT`: `/json`, whose requests are within `bounds`, `/healthcheck` and `/metrics`, which is one of `pages`.
pub fn router<S: Store>(context: &ServiceContext<S>, bounds: RequestBounds, pages: &Pages) -> Router {
    let health = get(health::check).with_state(context.health.clone());
    let metrics = metrics::route(&context.stats, context.metric_names.clone(), pages);
    let json = post(json::decide::<S>).with_state(Arc::new(JsonApi::new(context.clone(), bounds)));
    Router::new().route("/json", json).route("/healthcheck", health).route("/metrics", metrics)
}

/// Returns the paths of `DEBUG_PORT`: `/`, which lists the others, and of `pages` `/stats`, `/rlconfig` and `/metrics`.
pub fn debug_router<S: Store>(context: &ServiceContext<S>, pages: &Pages) -> Router {
    let metrics = metrics::route(&context.stats, context.metric_names.clone(), pages);
    debug::router(context, pages).route("/metrics", metrics)
}
