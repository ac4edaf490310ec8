//! The gRPC server: Envoy's `RateLimitService`, health and reflection.

mod certificates;
mod connection;
mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod handshake;
mod health;
mod health_and_reflection;
mod message;
mod refusal;
mod request_headers;
mod response;
mod server;
mod service;
mod socket;
mod status;
mod stream;
mod timeout;
mod worker;

pub use certificates::Certificates;
pub use server::{Server, ServerError};
pub use service::Service;
