//! The HTTP servers: `PORT`, for decisions, health and metrics, and `DEBUG_PORT`, for people.

mod context;
mod debug;
mod health;
mod json;
mod metrics;
mod page;
mod router;

pub use context::ServiceContext;
pub use metrics::metrics_router;
pub use router::{debug_router, router, serve};
