//! The gRPC door: Envoy's `RateLimitService`, health and reflection.

mod connection;
mod decode;
mod encode;
mod exchange;
mod health;
mod listener;
mod message;
mod others;
mod server;
mod service;
mod status;
mod worker;

pub use connection::Life;
pub(crate) use listener::bind_tcp;
pub use listener::{BindError, BoundTo, Listener};
pub use server::{Server, ServerError};
pub use service::Service;
