//! What the memory in front of the disk notes about a counter: whether the disk has its last state.

use super::record;
use crate::{
    limit::{CounterKey, LimitCheck, Tier},
    store::memory::Notes,
};

/// The notes about one counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskNotes {
    /// The expiry of its record on disk, in seconds since the epoch; 0 if there is none.
    pub(super) expiry: u32,
    /// Whether what the disk has is known, and part of the state.
    pub(super) is_read: bool,
    /// Whether it is in the log, because it has changed.
    pub(super) is_logged: bool,
    /// Whether a batch that is being written has it.
    pub(super) is_being_written: bool,
}

/// A counter that has changed.
#[derive(Debug)]
pub struct Changed {
    pub(super) key: CounterKey,
    /// The key of its record.
    pub(super) name: Box<[u8]>,
    pub(super) tier: Tier,
}

impl Notes for DiskNotes {
    type Log = Vec<Changed>;

    const NOTED: bool = true;

    fn is_removable(&self) -> bool {
        self.is_read && !self.is_logged && !self.is_being_written
    }

    fn changed(&mut self, log: &mut Vec<Changed>, check: &LimitCheck<'_>, tier: &Tier, key: CounterKey) {
        if !self.is_logged {
            self.is_logged = true;
            log.push(Changed { key, name: record::key(check, tier), tier: tier.clone() });
        }
    }
}
