//! `/metrics`: the stats for Prometheus.

use std::sync::Arc;

use axum::{
    Router,
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use tokio::task::spawn_blocking;

use crate::observe::{
    Stats,
    prometheus::{self, TimeUnit},
};

/// What `PROMETHEUS_ADDR` serves: the stats at `path` (`PROMETHEUS_PATH`), which need not be one that a router takes.
pub fn metrics_router(stats: &Arc<Stats>, path: String, unit: TimeUnit) -> Router {
    let stats = Arc::clone(stats);
    Router::new().fallback(get(move |uri: Uri| async move {
        if uri.path().trim_start_matches('/') == path.trim_start_matches('/') {
            page(stats, unit).await
        } else {
            StatusCode::NOT_FOUND.into_response()
        }
    }))
}

pub(super) fn route(stats: &Arc<Stats>, unit: TimeUnit) -> MethodRouter {
    let stats = Arc::clone(stats);
    get(move || page(Arc::clone(&stats), unit))
}

async fn page(stats: Arc<Stats>, unit: TimeUnit) -> Response {
    match whole_page(move || prometheus::render(&stats, unit)).await {
        Ok(text) => ([(CONTENT_TYPE, prometheus::CONTENT_TYPE)], text).into_response(),
        Err(refused) => refused,
    }
}

/// Makes a page off the threads that decide requests: tens of thousands of rules take longer than a decision may wait.
pub(super) async fn whole_page(make: impl FnOnce() -> String + Send + 'static) -> Result<String, Response> {
    spawn_blocking(make).await.map_err(|error| {
        tracing::error!(%error, "a page could not be made");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
}
