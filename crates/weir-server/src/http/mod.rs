//! The HTTP servers: `PORT`, for decisions, health and metrics, and `DEBUG_PORT`, for people.

mod access;
mod acquire;
pub mod admin;
mod client;
mod context;
mod debug;
#[cfg(any(debug_assertions, fuzzing))]
pub(super) mod fuzz;
mod hot;
mod json;
mod metrics;
mod pages;
mod router;
mod secret_file;
mod serve;
pub mod tenant;

pub use access::JsonAccess;
pub use context::ServiceContext;
pub use metrics::metrics_router;
pub use pages::Pages;
pub use router::{debug_router, router};
pub use secret_file::SecretFileError;
pub use serve::serve;
