//! The replies to commands.

mod redis_cell;
mod rl;
mod rules;
mod throttle;
mod throttlecrab;

use super::start;
