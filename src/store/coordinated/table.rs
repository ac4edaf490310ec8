//! The cells of all targets, by their key: sharded, and bounded.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use super::counter::LocalCounter;
use crate::limit::{CounterKey, Timestamp};

/// CounterTable that one shard is meant for.
const CELLS_PER_SHARD: usize = 1024;

/// CounterTable among which one to forget is looked for.
const SAMPLE: usize = 32;

/// The cells of one shard. Each by itself, for they are large, and a table has up to as many free places as others.
pub(super) type Shard = HashMap<CounterKey, Box<LocalCounter>, foldhash::fast::RandomState>;

/// The cells of all targets.
#[derive(Debug)]
pub(super) struct CounterTable {
    /// A power of two of them. A lock is held for one decision, never across a wait.
    shards: Box<[Mutex<Shard>]>,
    most_in_a_shard: usize,
    /// The shard at which the next sweep begins.
    swept: AtomicUsize,
}

impl CounterTable {
    pub(super) fn new(max: usize) -> Self {
        let shards = max.div_ceil(CELLS_PER_SHARD).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            most_in_a_shard: max.div_ceil(shards).max(1),
            swept: AtomicUsize::new(0),
        }
    }

    /// The shard of `key`, locked.
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
    pub(super) fn lock(&self, key: CounterKey) -> MutexGuard<'_, Shard> {
        self.shards[key.shard() as usize & (self.shards.len() - 1)].lock()
    }

    /// Makes room for one more in `shard`, if it is full. Of a few, one that owes the store nothing is forgotten, for the
    /// store remembers it; else what it owes is lost. Returns whether that was so.
    pub(super) fn make_room(&self, shard: &mut Shard) -> bool {
        if shard.len() < self.most_in_a_shard {
            return false;
        }
        let sample = || shard.iter().take(SAMPLE);
        let settled = sample().find(|(_, counter)| counter.owes_nothing()).map(|(key, _)| *key);
        let chosen = settled.or_else(|| sample().next().map(|(key, _)| *key));
        chosen.is_some_and(|key| shard.remove(&key).is_some()) && settled.is_none()
    }

    /// Forgets what is idle, a shard at a time, and hands every other cell to `visit`: all of them, or about as many as
    /// `most`, and the next time those that come after them.
    pub(super) fn sweep(
        &self,
        now: Timestamp,
        most: usize,
        mut visit: impl FnMut(CounterKey, &mut LocalCounter),
    ) {
        let first = self.swept.load(Ordering::Relaxed);
        let mut visited = 0;
        for turn in 0..self.shards.len() {
            let next = (first + turn) % self.shards.len();
            if visited >= most {
                self.swept.store(next, Ordering::Relaxed);
                return;
            }
            let mut shard = self.shards[next].lock();
            visited += shard.len();
            shard.retain(|_, counter| !counter.is_idle(now));
            for (key, counter) in shard.iter_mut() {
                visit(*key, counter);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
