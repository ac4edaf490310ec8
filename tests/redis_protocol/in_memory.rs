//! The conformance tests, in memory.

use crate::client::start;

// compiled once for each store, whose `start` it uses
#[path = "commands/mod.rs"]
mod commands;
