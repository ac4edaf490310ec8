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
};
use crate::{server::bounds::RequestBounds, store::Store};

/// Returns the pages of `PORT`: `/json`, whose requests are within `bounds`, `/healthcheck` and `/metrics`.
pub fn router<S: Store>(context: &ServiceContext<S>, bounds: RequestBounds) -> Router {
    let health = get(health::check).with_state(context.health.clone());
    let metrics = metrics::route(&context.stats, context.metric_names.clone());
    let json = post(json::decide::<S>).with_state(Arc::new(JsonApi::new(context.clone(), bounds)));
    Router::new().route("/json", json).route("/healthcheck", health).route("/metrics", metrics)
}

/// Returns the pages of `DEBUG_PORT`: `/`, which lists the others, `/stats`, `/rlconfig` and `/metrics`.
pub fn debug_router<S: Store>(context: &ServiceContext<S>) -> Router {
    let metrics = metrics::route(&context.stats, context.metric_names.clone());
    debug::router(context).route("/metrics", metrics)
}
