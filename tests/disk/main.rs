//! Tests the store on disk: restarts, kills, a full disk, and damaged files.

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../support/wire.rs"]
mod wire;

mod buckets;
mod commands;
mod damaged;
mod directory;
mod flood;
mod killed;
mod no_room;
mod power;
mod restarts;
mod support;
mod unread;

use weir_testing::{child, skipped};
