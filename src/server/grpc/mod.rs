//! The gRPC server: Envoy's `RateLimitService`, health and reflection.

mod connection;
mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod health;
mod health_and_reflection;
mod message;
mod request_headers;
mod response;
mod server;
mod service;
mod status;
mod stream;
mod timeout;

pub use server::{Server, ServerError};
pub use service::Service;
