//! What the memory in front of the disk notes about a counter: whether the disk has its last state.

use super::record::{self, CounterKind};
use weir_limit::CounterKey;
use weir_store::memory::{Counted, Notes};

/// 8 bytes.
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

/// A counter that has changed, or that is to be read.
#[derive(Debug)]
pub struct Changed {
    pub(super) key: CounterKey,
    pub(super) name: Box<[u8]>,
    pub(super) kind: CounterKind,
}

impl Changed {
    pub(super) fn of(counted: &Counted<'_>) -> Self {
        let (name, kind) = match counted {
            Counted::Tier(check, tier) => (record::key(check, tier), CounterKind::Tier((*tier).clone())),
            Counted::Bucket(name, request) => {
                let kind = request.kind();
                (record::bucket_key(name, &kind), CounterKind::Bucket(kind))
            }
        };
        Self { key: counted.key(), name, kind }
    }
}

impl Notes for DiskNotes {
    type Log = Vec<Changed>;

    const NOTED: bool = true;

    fn is_removable(&self) -> bool {
        self.is_read && !self.is_logged && self.pins == 0
    }

    fn changed(&mut self, log: &mut Vec<Changed>, counted: Counted<'_>) {
        if !self.is_logged {
            self.is_logged = true;
            log.push(Changed::of(&counted));
        }
    }
}
