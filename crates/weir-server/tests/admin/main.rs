//! The admin API, over real sockets.

#[path = "../support/mod.rs"]
mod support;

mod client;
mod contract;
mod operations;
mod permission;
mod schema;
mod streams;
