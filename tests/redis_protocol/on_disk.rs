//! The same tests, with counters on disk.

use crate::client::start_on_disk as start;

#[expect(clippy::duplicate_mod, reason = "they run over both stores")]
#[path = "commands/mod.rs"]
mod commands;
