//! `/metrics`: the stats in Prometheus' format.

use std::sync::Arc;

use super::page;
use crate::observe::{
    Stats,
    prometheus::{self, TimeUnit},
};
use axum::{
    Router,
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};

/// Returns the page of `PROMETHEUS_ADDR`: the stats at `path` (`PROMETHEUS_PATH`), which may contain characters that a
/// router's pattern cannot.
pub fn metrics_router(stats: &Arc<Stats>, path: String, unit: TimeUnit) -> Router {
    let stats = Arc::clone(stats);
    Router::new().fallback(get(move |uri: Uri| async move {
        if uri.path().trim_start_matches('/') == path.trim_start_matches('/') {
            metrics_page(stats, unit).await
        } else {
            StatusCode::NOT_FOUND.into_response()
        }
    }))
}

pub(super) fn route(stats: &Arc<Stats>, unit: TimeUnit) -> MethodRouter {
    let stats = Arc::clone(stats);
    get(move || metrics_page(Arc::clone(&stats), unit))
}

async fn metrics_page(stats: Arc<Stats>, unit: TimeUnit) -> Response {
    match page::render(move || prometheus::render(&stats, unit)).await {
        Ok(text) => ([(CONTENT_TYPE, prometheus::CONTENT_TYPE)], text).into_response(),
        Err(failed) => failed,
    }
}
