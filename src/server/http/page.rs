//! Rendering of large pages.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tokio::task::spawn_blocking;

/// Renders a page off the threads that decide requests: with tens of thousands of rules it takes longer than a decision may
/// wait. Returns an error response if `render` panics.
pub(super) async fn render<T: Send + 'static>(
    render: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Response> {
    spawn_blocking(render).await.map_err(|error| {
        tracing::error!(%error, "cannot render a page");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
}
