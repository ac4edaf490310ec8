//! The admin API, over real sockets.

#[path = "../support/mod.rs"]
mod support;

mod api_page;
mod client;
mod contract;
mod operations;
mod permission;
mod schema;
mod streams;
