//! The gRPC door: Envoy's `RateLimitService`, health and reflection.

mod connection;
mod health;
mod listener;
mod server;
mod service;
mod status;

pub use connection::Life;
pub(crate) use listener::bind_tcp;
pub use listener::{BindError, BoundTo, Listener};
pub use server::{Server, ServerError};
pub use service::Service;
