//! Tests rule files: their meaning, their errors, and the source they are loaded from.

mod commands;
mod docs;
mod files;
mod hostile;
mod keys;
mod matching;
mod messages;
mod misplaced;
mod source;
mod tiers;
mod watching;

use weir_harness::local;
