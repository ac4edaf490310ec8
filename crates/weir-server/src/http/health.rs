//! `/healthcheck`: the status is for load balancers, the body for people.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::health::Health;

pub(super) async fn check(State(health): State<Health>) -> Response {
    if health.is_healthy() {
        return "OK".into_response();
    }
    let reasons: Vec<String> = health.reasons().iter().map(ToString::to_string).collect();
    // envoyproxy/ratelimit's status; 503 would be more precise
    (StatusCode::INTERNAL_SERVER_ERROR, reasons.join("\n")).into_response()
}
