//! The program with its store on disk: commands about its data, kills, a full disk.

mod commands;
mod directory;
mod killed;
mod no_room;
mod power;
// also writes data that the program reads
#[expect(dead_code, reason = "the tests of the crate need all of it")]
#[path = "../../crates/weir-disk/tests/disk/support.rs"]
mod support;

use weir_harness::wire;
use weir_testing::{child, skipped};
