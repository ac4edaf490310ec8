//! `/healthcheck`: for load balancers, which read the status, and for people, who read the body.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::observe::Health;

pub(super) async fn check(State(health): State<Health>) -> Response {
    if health.is_healthy() {
        return "OK".into_response();
    }
    let reasons: Vec<String> = health.reasons().iter().map(ToString::to_string).collect();
    // the reference's status; 503 would say it better
    (StatusCode::INTERNAL_SERVER_ERROR, reasons.join("\n")).into_response()
}
