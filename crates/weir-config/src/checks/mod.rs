//! Checks of rules that are read: what is an error although each part is valid, and what has no effect or not the
//! meaning that it has elsewhere, of which they warn.

pub(super) mod calendars;
pub(super) mod duplicates;
pub(super) mod foreign;
pub(super) mod hidden;
pub(super) mod ineffective;
pub(super) mod open_lists;
pub(super) mod redundant_tiers;
pub(super) mod request_names;
pub(super) mod unmetered;
pub(super) mod unshared;
