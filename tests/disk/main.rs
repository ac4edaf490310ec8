//! Tests the store on disk: restarts, kills, a full disk, and damaged files.

#[path = "../support/child.rs"]
mod child;
#[path = "../support/wire.rs"]
mod wire;

mod commands;
mod damaged;
mod directory;
mod killed;
mod no_room;
mod restarts;
mod support;
mod unread;
