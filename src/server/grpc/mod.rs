//! The gRPC door: Envoy's `RateLimitService`, health and reflection.

mod connection;
mod decode;
mod encode;
mod health;
mod health_and_reflection;
mod listener;
mod message;
mod server;
mod service;
mod status;
mod stream;
mod worker;

pub use connection::ConnectionAge;
pub(crate) use listener::bind_tcp;
pub use listener::{BindError, BoundTo, Listener};
pub use server::{Server, ServerError};
pub use service::Service;
