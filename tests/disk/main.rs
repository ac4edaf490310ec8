//! Tests the store on disk: restarts, kills, a full disk, and damaged files.

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

use weir_harness::wire;
use weir_testing::{child, skipped};
