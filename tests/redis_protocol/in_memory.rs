//! The conformance tests, in memory.

pub(crate) use crate::client::start;

#[path = "redis_cell.rs"]
mod redis_cell;
#[path = "rl.rs"]
mod rl;
#[path = "rules.rs"]
mod rules;
#[path = "throttle.rs"]
mod throttle;
#[path = "throttlecrab.rs"]
mod throttlecrab;
