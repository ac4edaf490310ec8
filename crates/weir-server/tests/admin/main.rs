//! The admin API, over real sockets.

#[path = "../support/mod.rs"]
mod support;

mod client;
mod permission;
