//! The server of Redis' protocol (RESP2 and RESP3): the rate limiting commands of smyte/ratelimit, redis-cell and
//! throttlecrab, weir's own, and those that clients send by themselves. `docs/redis-protocol.md` describes it.
//!
//! `parse` finds the commands in what a client sends, `commands` carries them out, `reply` writes the answers. A
//! connection lives on one thread: all commands of one read are decided in a row and leave in one write.

mod arguments;
mod auth;
mod commands;
mod connection;
#[cfg(any(debug_assertions, fuzzing))]
pub(super) mod fuzz;
mod parse;
mod reply;
mod server;
mod service;
mod session;
mod stats;

pub use auth::Auth;
pub use server::Server;
pub use service::{Service, ServiceSettings};
