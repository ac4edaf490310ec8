//! The gRPC server: Envoy's `RateLimitService`, `weir.v1.Limiter` for callers that wait, health and reflection.

mod acquire;
mod call_headers;
mod connection;
#[cfg(any(debug_assertions, fuzzing))]
pub(super) mod fuzz;
mod health;
mod health_and_reflection;
mod message;
mod resets;
mod response;
mod server;
mod service;
mod status;
mod tokens;

pub use acquire::AcquireService;
pub(crate) use message::PREFIX;
pub use server::{Server, ServerError};
pub use service::Service;
