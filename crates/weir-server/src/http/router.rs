use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::get,
};

use super::{
    access::{self, JsonAccess},
    admin::{self, AdminParts},
    context::ServiceContext,
    debug, metrics,
    pages::Pages,
};
use crate::{bounds::RequestBounds, health::Health};
use weir_store::Store;

/// The pages of `PORT`: `/json`, `/v1/acquire` and `/v1/release` as `access` allows, and `/healthcheck` and `/metrics` for everybody.
pub fn router<S: Store>(
    context: &ServiceContext<S>,
    bounds: RequestBounds,
    access: JsonAccess,
    pages: &Pages,
) -> Router {
    let health = get(check_health).with_state(context.health.clone());
    let metrics = metrics::route(&context.stats, context.metric_names.clone(), pages);
    let [json, acquire, release] = access::routes(access, context, bounds);
    Router::new()
        .route("/json", json)
        .route("/v1/acquire", acquire)
        .route("/v1/release", release)
        .route("/healthcheck", health)
        .route("/metrics", metrics)
}

/// Returns the paths of `DEBUG_PORT`: the console and `/metrics` for everybody, and the admin API and other pages for
/// those who have permission.
pub fn debug_router<S: Store>(context: &ServiceContext<S>, pages: &Pages, admin: AdminParts) -> Router {
    let metrics = metrics::route(&context.stats, context.metric_names.clone(), pages);
    let debug = debug::router(context, pages, &admin.permission);
    debug.merge(admin::router(context, admin)).route("/metrics", metrics)
}

/// The status is for load balancers, the body for people.
async fn check_health(State(health): State<Health>) -> Response {
    if health.is_healthy() {
        return "OK".into_response();
    }
    let reasons: Vec<String> = health.reasons().iter().map(ToString::to_string).collect();
    // envoyproxy/ratelimit's status; 503 would be more precise
    (StatusCode::INTERNAL_SERVER_ERROR, reasons.join("\n")).into_response()
}
