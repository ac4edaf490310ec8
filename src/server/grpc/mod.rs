//! The gRPC server: Envoy's `RateLimitService`, health and reflection.

mod connection;
mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod health;
mod health_and_reflection;
mod message;
mod response;
mod server;
mod service;
mod status;
mod stream;

pub use server::{Server, ServerError};
pub use service::Service;
