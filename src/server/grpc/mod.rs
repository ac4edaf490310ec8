//! The gRPC server: Envoy's `RateLimitService`, health and reflection.

mod connection;
mod decode;
mod encode;
mod health;
mod health_and_reflection;
mod message;
mod server;
mod service;
mod status;
mod stream;
mod worker;

pub use server::{Server, ServerError};
pub use service::Service;
