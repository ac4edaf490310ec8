//! Rule files: what they mean, and what is said of those that are wrong.

mod commands;
mod docs;
mod files;
mod hostile;
mod keys;
mod matching;
mod messages;
mod source;
mod tiers;
mod watching;
