//! Tests the store on disk: restarts, a full disk, and damaged files.

mod buckets;
mod damaged;
mod directory;
mod flood;
mod no_room;
mod restarts;
mod support;
mod unread;
