//! weir decides, for Envoy and everything else that asks, whether a request may pass.

pub mod app;
pub mod clock;
pub mod command;
pub mod config;
pub mod limit;
mod limiter;
pub mod observe;
pub mod proto;
mod runtime;
pub mod server;
pub mod settings;
pub mod simulate;
pub mod store;

pub use limiter::{DecisionSettings, LimitError, Limiter};
