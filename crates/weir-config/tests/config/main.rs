//! Tests rule files: their meaning, and their errors.

mod calendars;
mod docs;
mod files;
mod hostile;
mod in_flight;
mod keys;
mod matching;
mod messages;
mod misplaced;
mod networks;
mod schedules;
mod shares;
mod tables;
mod tiers;
