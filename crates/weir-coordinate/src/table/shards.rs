//! A sharded, bounded map from keys to local counters.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};

use super::flush::QueuePlace;
use crate::counter::LocalCounter;
use weir_limit::{CounterKey, Timestamp};
use weir_store::brief_lock;

const COUNTERS_PER_SHARD: usize = 1024;

/// A quarter of the map is sure for limits of requests, the rest for rules. Each may have more while there is room.
const SHARE_OF_REQUESTS: usize = 4;

/// The most counters of the same entries, unless they are of rules.
const MAX_SIBLINGS: usize = 16;

/// The buckets among which the counter to evict is chosen.
const EVICTION_SAMPLE: usize = 32;

/// The fewest buckets of a shard that are returned when most of them are free.
const MIN_BUCKETS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Shards {
    /// A power of two. A lock is held for one decision, or for one pass over a shard, never across a wait.
    all: Box<[Mutex<CounterShard>]>,
    max: usize,
    max_bytes: usize,
    /// In all shards.
    live: AtomicUsize,
    /// Of these, those of limits that come with requests.
    of_requests: AtomicUsize,
    /// Of the names.
    bytes: AtomicUsize,
    /// The shard at which room is made next if there is none in that of a new counter.
    next_evicted: AtomicUsize,
    next_swept: AtomicUsize,
}

/// The counters of one shard. No two shards share a cache line, whose writers would wait for one another.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct CounterShard {
    /// Each counter is boxed: they are large, and a hash table keeps up to as many free slots as used ones.
    table: HashTable<Box<CounterEntry>>,
    /// Where the next sample begins. Keys are spread at random, so that any counter is as likely to be in a sample.
    next_sample: usize,
}

/// A counter with its key and its place in the queue. The key is in the box too, because free slots of a table cost what used ones do.
#[derive(Debug)]
pub(crate) struct CounterEntry {
    pub(crate) key: CounterKey,
    pub(super) place: QueuePlace,
    pub(crate) counter: LocalCounter,
}

/// The hash in the table of a shard: the same for all limits of the same entries, of which [`CounterKey::shard`] returns
/// `shard`. Turned, since all counters of a shard have the same lowest bits.
const fn bucket(shard: u64) -> u64 {
    shard.rotate_right(32)
}

// === impl Shards ===

impl Shards {
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// `max_bytes` bounds the names of all counters together.
    pub(super) fn new(max: usize, max_bytes: usize) -> Self {
        let shards = max.div_ceil(COUNTERS_PER_SHARD).next_power_of_two();
        let all = (0..shards).map(|_| Mutex::default()).collect();
        Self { all, max, max_bytes, ..Self::default() }
    }

    /// `shard` is what [`CounterKey::shard`] returns for the keys of its counters.
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits are suitable")]
    pub(super) fn lock(&self, shard: u64) -> MutexGuard<'_, CounterShard> {
        brief_lock::lock(&self.all[shard as usize & (self.all.len() - 1)])
    }

    /// Adds `counter` to `shard`, where `key` belongs. If the map is full, passes others to `evicted`: one of the shard for
    /// their number, and as many as needed for the bytes of their names; and one if the same entries have too many.
    ///
    /// One of a request is evicted if requests have more than their share, else one of the kind of `key`: so no request
    /// evicts the counter of a rule. While requests have less, a rule makes room for one of theirs too.
    pub(super) fn insert<'a>(
        &self,
        shard: &'a mut CounterShard,
        key: CounterKey,
        counter: LocalCounter,
        mut evicted: impl FnMut(LocalCounter),
    ) -> &'a mut CounterEntry {
        let mut remove = |entry: Box<CounterEntry>| {
            self.forget(&entry);
            evicted(entry.counter);
        };
        shard.remove_one_of_many(key.shard()).into_iter().for_each(&mut remove);
        let (of_request, live) = (key.is_of_request(), self.live.load(Ordering::Relaxed));
        if live >= self.max {
            let least = self.max / SHARE_OF_REQUESTS;
            let of_requests = || self.of_requests.load(Ordering::Relaxed);
            let pays_for_another = !of_request && (of_requests() < least || live > self.max);
            for _ in 0..=usize::from(pays_for_another) {
                // if the counters of the other shards leave no room for the first one of its kind in this shard, there
                // is one too many, and no more than there are shards, since a rule may claim it
                let goes = of_request || of_requests() > least;
                let any = self.len() >= self.max + self.all.len();
                let cost = |entry: &CounterEntry| (any || entry.key.is_of_request() == goes).then_some(0);
                shard.evict(cost).into_iter().for_each(&mut remove);
            }
        }
        let bytes = counter.name_bytes();
        if self.bytes.load(Ordering::Relaxed) + bytes > self.max_bytes {
            self.make_room(shard, bytes, &mut remove);
        }
        self.live.fetch_add(1, Ordering::Relaxed);
        self.of_requests.fetch_add(usize::from(of_request), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let (hash, entry) =
            (bucket(key.shard()), Box::new(CounterEntry { key, place: QueuePlace::default(), counter }));
        shard.table.insert_unique(hash, entry, |entry| bucket(entry.key.shard())).into_mut()
    }

    /// From then on it is a rule's counter if `key` is a rule's, although a request may have brought it.
    pub(super) fn claim(&self, entry: &mut CounterKey, key: CounterKey) {
        if entry.is_of_request() && !key.is_of_request() {
            *entry = key;
            self.of_requests.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Evicts counters until there is room for `bytes`: first those with long names, which may be a flood, then any.
    #[cold]
    fn make_room(&self, shard: &mut CounterShard, bytes: usize, remove: &mut impl FnMut(Box<CounterEntry>)) {
        let is_full = || self.bytes.load(Ordering::Relaxed) + bytes > self.max_bytes;
        for least in [self.name_bytes() / self.len().max(1), 0] {
            // of those of a sample the longest
            let cost = |entry: &CounterEntry| {
                let bytes = entry.counter.name_bytes();
                (bytes >= least).then_some(usize::MAX - bytes)
            };
            let mut evict_from = |shard: &mut CounterShard| {
                while is_full()
                    && let Some(entry) = shard.evict(cost)
                {
                    remove(entry);
                }
            };
            evict_from(shard);
            for _ in 0..self.all.len() {
                if !is_full() {
                    return;
                }
                let next = self.next_evicted.fetch_add(1, Ordering::Relaxed) & (self.all.len() - 1);
                // without waiting, since two threads may want each other's
                if let Some(mut other) = self.all[next].try_lock() {
                    evict_from(&mut other);
                }
            }
        }
    }

    fn forget(&self, entry: &CounterEntry) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.of_requests.fetch_sub(usize::from(entry.key.is_of_request()), Ordering::Relaxed);
        self.bytes.fetch_sub(entry.counter.name_bytes(), Ordering::Relaxed);
    }

    /// Takes another of `parts` parts of the map each time. Visits counters that are not quiet, and removes idle ones.
    pub(super) fn sweep(&self, parts: usize, now: Timestamp, mut visit: impl FnMut(&mut CounterEntry)) {
        let count = self.all.len().div_ceil(parts);
        let first = self.next_swept.fetch_add(count, Ordering::Relaxed);
        for next in first..first.wrapping_add(count) {
            let mut shard = self.all[next & (self.all.len() - 1)].lock();
            let mut siblings: Vec<CounterKey> = Vec::new();
            shard.table.retain(|entry| {
                let mut is_idle = entry.counter.is_idle(now);
                if !is_idle && !entry.counter.is_quiet() {
                    visit(entry);
                    // the visit may have ended its leases
                    is_idle = entry.counter.is_idle(now);
                }
                let has_sibling = entry.counter.choice.has_sibling;
                if is_idle && has_sibling {
                    siblings.push(entry.key);
                } else if is_idle {
                    self.forget(entry);
                }
                !is_idle || has_sibling
            });
            for key in siblings {
                let Some(entry) = shard.remove(key) else { continue };
                self.forget(&entry);
                // else the next counter of these entries would begin with what they knew before
                shard.all_of(key.shard()).for_each(|other| other.counter.outlive(&entry.counter));
            }
            shard.shrink();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    pub(crate) fn name_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

// === impl CounterShard ===

impl CounterShard {
    pub(super) fn entry_mut(&mut self, key: CounterKey) -> Option<&mut CounterEntry> {
        let entry = self.table.find_mut(bucket(key.shard()), |entry| entry.key == key)?;
        Some(&mut **entry)
    }

    /// Returns the counters of the same entries, for whose keys [`CounterKey::shard`] returns `shard`.
    pub(super) fn all_of(&mut self, shard: u64) -> impl Iterator<Item = &mut CounterEntry> {
        let found = self.table.iter_hash_mut(bucket(shard)).map(|entry| &mut **entry);
        found.filter(move |entry| entry.key.shard() == shard)
    }

    /// Of the same entries, if they have too many counters: callers choose the periods of their limits.
    fn remove_one_of_many(&mut self, shard: u64) -> Option<Box<CounterEntry>> {
        if self.all_of(shard).count() < MAX_SIBLINGS {
            return None;
        }
        // that of a rule stays
        let of_requests = self.all_of(shard).filter(|entry| entry.key.is_of_request());
        let key =
            of_requests.min_by_key(|entry| (!entry.counter.is_settled(), entry.counter.last_check_at))?.key;
        self.remove(key)
    }

    fn remove(&mut self, key: CounterKey) -> Option<Box<CounterEntry>> {
        let found = self.table.find_entry(bucket(key.shard()), |entry| entry.key == key);
        Some(found.ok()?.remove().0)
    }

    /// Removes the least missed counter of a sample: by `is_settled`, cost and last use. One without a cost stays.
    fn evict(&mut self, cost_of: impl Fn(&CounterEntry) -> Option<usize>) -> Option<Box<CounterEntry>> {
        let buckets = self.table.num_buckets();
        let (mut chosen, mut sampled) = (None, 0);
        while sampled < buckets && (sampled < EVICTION_SAMPLE || chosen.is_none()) {
            let bucket = self.next_sample % buckets;
            (self.next_sample, sampled) = (bucket + 1, sampled + 1);
            if let Some(entry) = self.table.get_bucket(bucket)
                && let Some(cost) = cost_of(entry)
            {
                let cost = (!entry.counter.is_settled(), cost, entry.counter.last_check_at);
                if chosen.is_none_or(|(least, _)| cost < least) {
                    chosen = Some((cost, bucket));
                }
            }
        }
        let (_, bucket) = chosen?;
        Some(self.table.get_bucket_entry(bucket).ok()?.remove().0)
    }

    /// Room for as many keys again is kept: nothing is returned while more than a quarter of the buckets are used.
    fn shrink(&mut self) {
        if self.table.num_buckets() > MIN_BUCKETS {
            self.table.shrink_to(self.table.len() * 2, |entry| bucket(entry.key.shard()));
        }
    }
}

#[cfg(test)]
mod tests;
