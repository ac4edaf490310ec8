//! The same tests, with counters on disk.

pub(crate) use crate::client::start_on_disk as start;

#[expect(clippy::duplicate_mod, reason = "they run over both stores")]
#[path = "redis_cell.rs"]
mod redis_cell;
#[expect(clippy::duplicate_mod, reason = "they run over both stores")]
#[path = "rl.rs"]
mod rl;
#[expect(clippy::duplicate_mod, reason = "they run over both stores")]
#[path = "rules.rs"]
mod rules;
#[expect(clippy::duplicate_mod, reason = "they run over both stores")]
#[path = "throttle.rs"]
mod throttle;
#[expect(clippy::duplicate_mod, reason = "they run over both stores")]
#[path = "throttlecrab.rs"]
mod throttlecrab;
