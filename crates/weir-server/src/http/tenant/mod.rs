//! Tenants that look at their own limits: on the HTTP port, with tokens that are scoped to their entries.

mod headroom;
mod signing;
mod token;
mod tokens;

use std::sync::Arc;

use axum::{Router, http::StatusCode, routing};

use self::headroom::{Headroom, get};
pub use self::{
    token::{TenantClaims, TenantEntry, TenantTokenError, TokenKeys},
    tokens::{TenantSettings, TenantTokens, read_keys},
};
use super::{admin::Problem, context::ServiceContext};
use weir_store::Store;

/// The operation of tenants, for `PORT`. Without `tokens` it says what it needs.
pub fn router<S: Store>(context: &ServiceContext<S>, tokens: Option<Arc<TenantTokens>>) -> Router {
    let operation = match tokens {
        Some(tokens) => routing::get(get::<S>).with_state(Headroom::new(context, tokens)),
        None => routing::any(off),
    };
    Router::new().route("/v1/headroom", operation)
}

async fn off() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "WEIR_TOKEN_KEY_FILE is not set: tenants cannot look at their limits.",
    )
}
