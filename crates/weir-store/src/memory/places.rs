//! The places of requests in flight, beside the counters: for each counter its names in order, oldest first, each with the
//! hits that its request has reserved.
//!
//! Only admitted requests add names; ends, known or not, add nothing. A counter's oldest name is given up first, and the
//! counters of a shard are in the order in which that is due. So each operation finds what is due, and a full table
//! the place that is the nearest to being given up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use weir_limit::{CounterKey, Hits, InFlight, Period, PlaceName, ReservedHits, Timestamp};
use weir_observe::PlaceStats;

/// More than threads, so that few wait for a lock.
const SHARDS: usize = 64;

/// The most places of other counters that an operation gives up, and that a sweep does under one lock.
const OTHERS: usize = 16;

/// The most entries of a counter about hits that were given up: what is more becomes a part of the last one.
const GIVEN_UP: usize = 16;

/// The places of each counter.
#[derive(Debug)]
pub(super) struct PlaceTable {
    shards: Box<[Mutex<PlaceShard>]>,
    /// In all shards, so that the bound needs no lock.
    places: AtomicUsize,
    counters: AtomicUsize,
    max_weight: usize,
}

#[derive(Debug, Default)]
struct PlaceShard {
    /// Those that have places. A tree: a hash table would move all of them under the lock when it grows.
    counters: BTreeMap<CounterKey, CounterPlaces>,
    /// When the oldest place of each is given up.
    due: BTreeSet<(Timestamp, CounterKey)>,
    /// The places of all of them.
    places: usize,
    /// What places that were given up have reserved, until the next request asks for it. The counters may have no places.
    given_up: BTreeMap<CounterKey, Vec<ReservedHits>>,
    /// The most counters there.
    max_given_up: usize,
}

#[derive(Debug)]
struct CounterPlaces {
    names: BTreeMap<PlaceName, Hits>,
    /// As in [`PlaceShard::due`].
    due: Timestamp,
    /// That of the last operation.
    give_up_after: Period,
    stats: Arc<PlaceStats>,
}

/// The result of asking for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) is_taken: bool,
    /// The places of others.
    pub(super) before: usize,
}

// === impl PlaceTable ===

impl PlaceTable {
    /// So many places are as large as a counter of the store.
    const PER_COUNTER: usize = 8;

    /// The other half of the `max_counters` is for counters of rates. What was given up takes a sixteenth of that room.
    pub(super) fn new(max_counters: usize) -> Self {
        let max_given_up = max_counters.div_ceil(32 * SHARDS).max(1);
        let shard = || PlaceShard { max_given_up, ..PlaceShard::default() };
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            places: AtomicUsize::new(0),
            counters: AtomicUsize::new(0),
            max_weight: max_counters.div_ceil(2),
        }
    }

    /// Takes a place for `name`, which has `reserved` hits, if fewer than the limit are taken. A name has one place, however
    /// often it asks.
    pub(super) fn take(
        &self,
        key: CounterKey,
        (name, reserved): (PlaceName, Hits),
        limit: InFlight,
        stats: &Arc<PlaceStats>,
        now: Timestamp,
    ) -> Asked {
        let asked = self.on_shard(key, limit.give_up_after, now, |shard| {
            let places = shard.len(key);
            if let Some(hits) = shard.get_mut(key, name) {
                *hits = hits.plus(reserved);
                return Asked { is_taken: true, before: places - 1 };
            }
            let is_taken = places < limit.most as usize;
            if is_taken {
                shard.insert(key, (name, reserved), limit.give_up_after, stats);
                stats.start();
            }
            Asked { is_taken, before: places }
        });
        if asked.is_taken {
            self.bound(key);
        }
        asked
    }

    /// Returns the number of places that are taken.
    pub(super) fn look(&self, key: CounterKey, give_up_after: Period, now: Timestamp) -> usize {
        self.on_shard(key, give_up_after, now, |shard| shard.len(key))
    }

    /// Frees the place of `name`, or else the newest one. Returns what its request has reserved; none without a place.
    pub(super) fn end(
        &self,
        key: CounterKey,
        name: Option<PlaceName>,
        give_up_after: Period,
        now: Timestamp,
    ) -> Option<ReservedHits> {
        self.on_shard(key, give_up_after, now, |shard| shard.remove(key, name))
    }

    /// Gives up the places that are `older_than`. Returns their number.
    pub(super) fn free(&self, key: CounterKey, older_than: Period, now: Timestamp) -> usize {
        self.counting(&mut self.shards[index(key)].lock(), |shard| {
            let before = shard.places;
            if let Some(set) = shard.counters.get(&key) {
                let give_up_after = set.give_up_after;
                shard.give_up_old(key, older_than, now);
                shard.give_up_old(key, give_up_after, now);
            }
            before - shard.places
        })
    }

    /// Returns, once, what requests had reserved whose places were given up.
    pub(super) fn given_up(
        &self,
        key: CounterKey,
        give_up_after: Period,
        now: Timestamp,
    ) -> Vec<ReservedHits> {
        self.on_shard(key, give_up_after, now, |shard| shard.given_up.remove(&key).unwrap_or_default())
    }

    /// Gives up what is due, of part `step` of `steps`.
    pub(super) fn sweep(&self, step: usize, steps: usize, now: Timestamp) {
        for shard in self.shards.iter().skip(step % steps).step_by(steps) {
            while self.counting(&mut shard.lock(), |shard| shard.give_up_due(now)) == OTHERS {}
        }
    }

    /// Returns how many counters of the store are as large as all of this.
    pub(super) fn weight(&self) -> usize {
        self.counters.load(Ordering::Relaxed) + self.places.load(Ordering::Relaxed) / Self::PER_COUNTER
    }

    /// Gives up what is due of `key`, and some of what is due of others, before it acts.
    fn on_shard<T>(
        &self,
        key: CounterKey,
        give_up_after: Period,
        now: Timestamp,
        act: impl FnOnce(&mut PlaceShard) -> T,
    ) -> T {
        self.counting(&mut self.shards[index(key)].lock(), |shard| {
            shard.give_up_old(key, give_up_after, now);
            shard.give_up_due(now);
            act(shard)
        })
    }

    fn counting<T>(&self, shard: &mut PlaceShard, act: impl FnOnce(&mut PlaceShard) -> T) -> T {
        let before = (shard.places, shard.counters.len());
        let done = act(shard);
        // fewer are so many more, modulo the size of the number
        self.places.fetch_add(shard.places.wrapping_sub(before.0), Ordering::Relaxed);
        self.counters.fetch_add(shard.counters.len().wrapping_sub(before.1), Ordering::Relaxed);
        done
    }

    fn is_full(&self) -> bool {
        self.weight() > self.max_weight
    }

    /// Gives up the places that are the nearest to it while there are too many, in the shard of `key` first: keys are
    /// spread evenly, so that it has a share of the oldest.
    fn bound(&self, key: CounterKey) {
        for turn in 0..SHARDS {
            if !self.is_full() {
                return;
            }
            let mut shard = self.shards[(index(key) + turn) % SHARDS].lock();
            // the only place of the first shard is the one that was just taken
            while self.is_full() && shard.places > usize::from(turn == 0) {
                self.counting(&mut shard, PlaceShard::give_up_first);
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any of its bits are suitable")]
const fn index(key: CounterKey) -> usize {
    key.shard() as usize % SHARDS
}

// === impl PlaceShard ===

impl PlaceShard {
    fn len(&self, key: CounterKey) -> usize {
        self.counters.get(&key).map_or(0, |set| set.names.len())
    }

    fn get_mut(&mut self, key: CounterKey, name: PlaceName) -> Option<&mut Hits> {
        self.counters.get_mut(&key)?.names.get_mut(&name)
    }

    fn insert(
        &mut self,
        key: CounterKey,
        (name, reserved): (PlaceName, Hits),
        give_up_after: Period,
        stats: &Arc<PlaceStats>,
    ) {
        let set = self.counters.entry(key).or_insert_with(|| CounterPlaces {
            names: BTreeMap::new(),
            due: Timestamp::default(),
            give_up_after,
            stats: Arc::clone(stats),
        });
        self.places += usize::from(set.names.insert(name, reserved).is_none());
        self.settle(key);
    }

    fn remove(&mut self, key: CounterKey, name: Option<PlaceName>) -> Option<ReservedHits> {
        let names = &mut self.counters.get_mut(&key)?.names;
        let (name, hits) = match name {
            Some(name) => names.remove_entry(&name),
            None => names.pop_last(),
        }?;
        self.places -= 1;
        self.settle(key);
        Some(ReservedHits { hits, start: name.start() })
    }

    /// Gives up all places of `key` that are `give_up_after` old, which from now on is their age.
    fn give_up_old(&mut self, key: CounterKey, give_up_after: Period, now: Timestamp) {
        let Some(set) = self.counters.get_mut(&key) else { return };
        if set.give_up_after != give_up_after {
            set.give_up_after = give_up_after;
            self.settle(key);
        }
        self.give_up(key, usize::MAX, Some(now));
    }

    /// Gives up places that are due, at most [`OTHERS`], and returns their number.
    fn give_up_due(&mut self, now: Timestamp) -> usize {
        let mut given_up = 0;
        while given_up < OTHERS
            && let Some((due, key)) = self.due.first().copied()
            && due <= now
        {
            given_up += self.give_up(key, OTHERS - given_up, Some(now));
        }
        given_up
    }

    fn give_up_first(&mut self) {
        if let Some((_, key)) = self.due.first().copied() {
            self.give_up(key, 1, None);
        }
    }

    /// Gives up the oldest places of `key`: up to `most`, and only those that are due at `now`, if it is given.
    fn give_up(&mut self, key: CounterKey, most: usize, now: Option<Timestamp>) -> usize {
        let Some(set) = self.counters.get_mut(&key) else { return 0 };
        let (mut given_up, mut reserved) = (0, Vec::new());
        while given_up < most
            && let Some(oldest) = set.names.first_entry()
            && now.is_none_or(|now| oldest.key().start().after(set.give_up_after) <= now)
        {
            let (name, hits) = oldest.remove_entry();
            if hits > Hits(0) {
                reserved.push(ReservedHits { hits, start: name.start() });
            }
            given_up += 1;
        }
        if given_up > 0 {
            set.stats.give_up(given_up as u64);
            self.places -= given_up;
            self.settle(key);
            self.keep(key, reserved);
        }
        given_up
    }

    /// Keeps hits that were given up, in place of those of another counter if there are too many.
    fn keep(&mut self, key: CounterKey, reserved: Vec<ReservedHits>) {
        if reserved.is_empty() {
            return;
        }
        let kept = self.given_up.entry(key).or_default();
        for more in reserved {
            let is_full = kept.len() >= GIVEN_UP;
            match kept.last_mut() {
                // they go back as of an earlier start, so no window counts too little
                Some(last) if is_full => last.hits = last.hits.plus(more.hits),
                _ => kept.push(more),
            }
        }
        if self.given_up.len() > self.max_given_up
            && let Some(other) = self.given_up.keys().find(|other| **other != key).copied()
        {
            self.given_up.remove(&other);
        }
    }

    /// Puts `key` where its oldest place belongs, or removes it without any.
    fn settle(&mut self, key: CounterKey) {
        let Some(set) = self.counters.get_mut(&key) else { return };
        let oldest = set.names.first_key_value().map(|(name, _)| name.start().after(set.give_up_after));
        if oldest == Some(set.due) {
            return;
        }
        self.due.remove(&(set.due, key));
        match oldest {
            Some(due) => {
                set.due = due;
                self.due.insert((due, key));
            }
            None => {
                self.counters.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
