//! A sharded, bounded map from keys to what this instance knows of places.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering},
};

use hashbrown::{HashMap, HashSet};
use parking_lot::{Mutex, MutexGuard};

use super::counter::LocalPlaces;
use weir_limit::{CounterKey, PlaceName, Timestamp};
use weir_store::brief_lock;

/// More than threads, so that few wait for a lock.
const SHARDS: usize = 64;

/// The counters of which one is evicted: looking at all of a shard would take long.
const FEW: usize = 16;

/// The ends that an instance remembers, so that repeated ones count nothing.
const REMEMBERED: usize = 1_024;

pub(super) type LocalPlaceShard = HashMap<CounterKey, LocalPlaces, foldhash::fast::RandomState>;

pub(super) struct LocalPlaceTable {
    shards: Box<[Mutex<LocalPlaceShard>]>,
    max: usize,
    /// The names in all counters that are to be added at the store.
    untold: AtomicUsize,
    max_untold: usize,
    next_swept: AtomicUsize,
    recent: Mutex<RecentEnds>,
}

/// The last names that have ended here.
#[derive(Debug, Default)]
struct RecentEnds {
    names: HashSet<(CounterKey, PlaceName), foldhash::fast::RandomState>,
    order: VecDeque<(CounterKey, PlaceName)>,
}

// === impl LocalPlaceTable ===

impl LocalPlaceTable {
    pub(super) fn new(max: usize, max_untold: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            max: max.div_ceil(SHARDS),
            untold: AtomicUsize::new(0),
            max_untold,
            next_swept: AtomicUsize::new(0),
            recent: Mutex::default(),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "any of its bits are suitable")]
    pub(super) fn lock(&self, key: CounterKey) -> MutexGuard<'_, LocalPlaceShard> {
        brief_lock::lock(&self.shards[key.shard() as usize % SHARDS])
    }

    /// A new counter may evict another one, which then is as one that this instance has not used.
    pub(super) fn with<T>(
        &self,
        key: CounterKey,
        new: impl FnOnce() -> LocalPlaces,
        act: impl FnOnce(&mut LocalPlaces) -> T,
    ) -> T {
        let mut shard = self.lock(key);
        if shard.len() >= self.max && !shard.contains_key(&key) {
            self.make_room(&mut shard);
        }
        self.counting(shard.entry(key).or_insert_with(new), act)
    }

    /// None if there is no such counter.
    pub(super) fn with_existing<T>(
        &self,
        key: CounterKey,
        act: impl FnOnce(&mut LocalPlaces) -> T,
    ) -> Option<T> {
        Some(self.counting(self.lock(key).get_mut(&key)?, act))
    }

    /// Returns whether more names may be added at the store later.
    pub(super) fn has_room(&self) -> bool {
        self.untold.load(Ordering::Relaxed) < self.max_untold
    }

    fn counting<T>(&self, places: &mut LocalPlaces, act: impl FnOnce(&mut LocalPlaces) -> T) -> T {
        let before = places.untold_names();
        let done = act(places);
        let after = places.untold_names();
        if after > before {
            self.untold.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.untold.fetch_sub(before - after, Ordering::Relaxed);
        }
        done
    }

    /// One that has nothing to tell goes first, if there is one among a few.
    fn make_room(&self, shard: &mut LocalPlaceShard) {
        let mut few = shard.iter().take(FEW);
        let without = few.find(|(_, places)| places.untold_names() == 0).or_else(|| shard.iter().next());
        let Some(evicted) = without.map(|(key, _)| *key) else { return };
        let evicted = shard.remove(&evicted).map_or(0, |places| places.untold_names());
        self.untold.fetch_sub(evicted, Ordering::Relaxed);
    }

    /// Removes idle counters from some of the shards, others each time.
    pub(super) fn sweep(&self, parts: usize, now: Timestamp) {
        for _ in 0..SHARDS.div_ceil(parts) {
            let next = self.next_swept.fetch_add(1, Ordering::Relaxed);
            let mut shard = self.shards[next % SHARDS].lock();
            shard.retain(|_, places| !places.is_idle(now));
            if shard.capacity() > 4 * shard.len().max(16) {
                shard.shrink_to_fit();
            }
        }
    }

    /// Remembers that `name` has ended, and returns whether that is new.
    pub(super) fn remember(&self, key: CounterKey, name: PlaceName) -> bool {
        let (mut recent, ended) = (brief_lock::lock(&self.recent), (key, name.without_flags()));
        let is_new = recent.names.insert(ended);
        if is_new {
            recent.order.push_back(ended);
        }
        if recent.order.len() > REMEMBERED
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.names.remove(&oldest);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::counter::{PlaceCounter, UntoldPlace};
    use weir_limit::{Entry, Hits, InFlight, KeyHasher, OnStoreFailure, Period};
    use weir_store::place_command::PlaceReply;

    fn new() -> LocalPlaces {
        let limit = InFlight { most: 9, give_up_after: Period::from_secs(10) };
        LocalPlaces::new(PlaceCounter::of(CounterKey::default(), limit))
    }

    fn keys(hasher: &KeyHasher) -> impl Iterator<Item = CounterKey> {
        let values = (0..5_000).map(|i| i.to_string());
        let key = |value: String| hasher.key("d", &[Entry { key: "k", value: &value }], |_| None);
        values.map(key).collect::<Vec<_>>().into_iter()
    }

    fn len(table: &LocalPlaceTable) -> usize {
        table.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    #[test]
    fn counters_and_names_are_bounded_and_idle_ones_are_removed() {
        let (table, hasher, now) =
            (LocalPlaceTable::new(640, 100), KeyHasher::random(), Timestamp::from_secs(9));
        for (i, key) in keys(&hasher).enumerate() {
            let name = PlaceName::new(now, i as u64, true);
            let (has_room, place) = (table.has_room(), UntoldPlace::new(Hits(0), 0));
            table.with(key, new, |places| {
                places.hear(&PlaceReply { now, places: 1, ..PlaceReply::default() });
                places.decide((Some(name), has_room), place, OnStoreFailure::Allow, 1, now);
            });
        }
        let untold = || table.untold.load(Ordering::Relaxed);
        assert!((600..=640).contains(&len(&table)) && untold() <= 100, "{} {}", len(&table), untold());
        let kept = keys(&hasher).filter_map(|key| table.with_existing(key, |places| places.untold_names()));
        assert_eq!(kept.sum::<usize>(), untold());
        // those with names stay, since the store does not know of them
        let later = now.after(Period::from_secs(10));
        table.sweep(1, later);
        assert_eq!(len(&table), untold());
        for key in keys(&hasher) {
            table.with_existing(key, |places| places.untold(9, later));
        }
        table.sweep(1, later);
        assert_eq!((len(&table), untold()), (0, 0));
    }

    #[test]
    fn the_last_ends_are_remembered() {
        let (table, hasher) = (LocalPlaceTable::new(64, 1), KeyHasher::random());
        let key = keys(&hasher).next().expect("many");
        let name = |serial| PlaceName::new(Timestamp::from_secs(1), serial, false);
        assert!(table.remember(key, name(0)) && !table.remember(key, name(0).by_fallback()));
        for serial in 1..REMEMBERED as u64 {
            assert!(table.remember(key, name(serial)));
        }
        assert!(!table.remember(key, name(0)) && table.remember(key, name(9_999)));
        assert!(table.remember(key, name(0)));
    }
}
