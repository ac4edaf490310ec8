//! What the memory in front of the disk notes about a counter: whether the disk has its last state.

use super::record;
use crate::{
    limit::{CounterKey, LimitCheck, Tier},
    store::memory::Notes,
};

/// The notes about one counter. 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskNotes {
    /// The expiry of its record on disk, in seconds since the epoch; 0 if there is none.
    pub(super) expiry: u32,
    /// Whether what the disk has is known, and part of the state.
    pub(super) is_read: bool,
    /// Whether it is in the log, because it has changed.
    pub(super) is_logged: bool,
    /// The decisions that are about to use it, and 1 while a batch that has it is being written.
    pub(super) pins: u16,
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
        self.is_read && !self.is_logged && self.pins == 0
    }

    fn changed(&mut self, log: &mut Vec<Changed>, check: &LimitCheck<'_>, tier: &Tier, key: CounterKey) {
        if !self.is_logged {
            self.is_logged = true;
            log.push(Changed { key, name: record::key(check, tier), tier: tier.clone() });
        }
    }
}
