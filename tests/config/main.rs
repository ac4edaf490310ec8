//! Tests rule files: their meaning, their errors, and the source they are loaded from.

mod commands;
mod docs;
mod files;
mod hostile;
mod keys;
#[path = "../support/local.rs"]
mod local;
mod matching;
mod messages;
mod misplaced;
mod source;
mod tiers;
mod watching;
