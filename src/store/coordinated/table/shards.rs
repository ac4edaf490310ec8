//! A sharded, bounded map from keys to local counters.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    limit::{CounterKey, Timestamp},
    store::coordinated::counter::LocalCounter,
};

/// The number of counters per shard that the number of shards is chosen for.
const COUNTERS_PER_SHARD: usize = 1024;

/// The number of counters among which the one to evict is chosen.
const EVICTION_SAMPLE: usize = 32;

/// The counters of one shard. Each is boxed: they are large, and a hash table keeps up to as many free slots as used ones.
pub(super) type Shard = HashMap<CounterKey, Box<LocalCounter>, foldhash::fast::RandomState>;

/// The counters of all targets.
#[derive(Debug)]
pub(super) struct Shards {
    /// The shards, whose number is a power of two. A lock is held for one decision, never across a wait.
    all: Box<[Mutex<Shard>]>,
    max_per_shard: usize,
    /// The shard at which the next sweep begins.
    next_swept: AtomicUsize,
}

// === impl Shards ===

impl Shards {
    /// Creates an empty map for up to `max` counters.
    pub(super) fn new(max: usize) -> Self {
        let shards = max.div_ceil(COUNTERS_PER_SHARD).next_power_of_two();
        Self {
            all: (0..shards).map(|_| Mutex::default()).collect(),
            max_per_shard: max.div_ceil(shards).max(1),
            next_swept: AtomicUsize::new(0),
        }
    }

    /// Locks the shard of `key`.
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits are suitable")]
    pub(super) fn lock(&self, key: CounterKey) -> MutexGuard<'_, Shard> {
        self.all[key.shard() as usize & (self.all.len() - 1)].lock()
    }

    /// Makes room for one more counter in `shard`, if it is full. Evicts a settled counter, whose hits are all in the store,
    /// if there is one in a small sample; otherwise pending hits are lost. Returns whether some were lost.
    pub(super) fn make_room(&self, shard: &mut Shard) -> bool {
        if shard.len() < self.max_per_shard {
            return false;
        }
        let sample = || shard.iter().take(EVICTION_SAMPLE);
        let settled = sample().find(|(_, counter)| counter.is_settled()).map(|(key, _)| *key);
        let chosen = settled.or_else(|| sample().next().map(|(key, _)| *key));
        chosen.is_some_and(|key| shard.remove(&key).is_some()) && settled.is_none()
    }

    /// Removes idle counters, a shard at a time, and passes every other one to `visit`. Stops after about `max` counters;
    /// the next sweep continues there.
    pub(super) fn sweep(
        &self,
        now: Timestamp,
        max: usize,
        mut visit: impl FnMut(CounterKey, &mut LocalCounter),
    ) {
        let first = self.next_swept.load(Ordering::Relaxed);
        let mut visited = 0;
        for turn in 0..self.all.len() {
            let next = (first + turn) % self.all.len();
            if visited >= max {
                self.next_swept.store(next, Ordering::Relaxed);
                return;
            }
            let mut shard = self.all[next].lock();
            visited += shard.len();
            shard.retain(|_, counter| !counter.is_idle(now));
            for (key, counter) in shard.iter_mut() {
                visit(*key, counter);
            }
        }
    }

    /// Returns the number of counters.
    pub(super) fn len(&self) -> usize {
        self.all.iter().map(|shard| shard.lock().len()).sum()
    }
}
