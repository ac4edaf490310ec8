//! The embedded store: everything in this process's memory, bounded.
//!
//! Counters are spread over shards, each a hash table behind a lock of its own. A lock is held for one ask, never
//! across a wait; all tiers of an ask are in one shard, so that deciding them together needs no second lock.

mod metrics;
mod shard;

use std::{
    future,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use self::shard::{Shard, Undo};
use super::{Decisions, Store, StoreError};
use crate::{
    limit::{
        CounterKey, Hits, LimitCheck, OverLimitPolicy, Reservation, ReservationRequest, Scope, Timestamp,
    },
    observe::histogram::{Distribution, Histogram},
};

/// Counters that one shard is meant for. Few enough that growing its table, which moves all of them under the lock,
/// stays well below a millisecond.
const COUNTERS_PER_SHARD: usize = 4096;

/// Buckets that are looked at while a lock is held.
const SWEEP_STRIDE: usize = 512;

/// Counts in this process's memory.
#[derive(Debug)]
pub struct MemoryStore {
    /// A power of two of them.
    shards: Box<[Mutex<Shard>]>,
    max_counters: usize,
    /// Counters in all shards: kept here, so that the bound holds over all of them without taking every lock.
    live: AtomicUsize,
    evicted: AtomicU64,
    expired: AtomicU64,
    /// For how long sweeping held a lock.
    holds: Box<Histogram>,
}

/// How full a [`MemoryStore`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Counters that are held now, expired ones too until they are swept.
    pub live: usize,
    /// Counters that may be held.
    pub max: usize,
    /// Counters that were dropped before they expired, because the store was full.
    pub evicted: u64,
    /// Counters that were taken out after they had expired.
    pub expired: u64,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// An empty store for up to `max_counters` counters, at least one.
    #[must_use]
    pub fn new(max_counters: usize) -> Self {
        let max_counters = max_counters.max(1);
        let shards = max_counters.div_ceil(COUNTERS_PER_SHARD).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            max_counters,
            live: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            holds: Box::default(),
        }
    }

    /// For how long sweeping held a lock, each time that it did: as long may a decision have waited.
    #[must_use]
    pub fn sweep_holds(&self) -> Distribution {
        self.holds.get()
    }

    /// How full it is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            live: self.live.load(Ordering::Relaxed),
            max: self.max_counters,
            evicted: self.evicted.load(Ordering::Relaxed),
            expired: self.expired.load(Ordering::Relaxed),
        }
    }

    /// How many steps of [`MemoryStore::sweep_step`] go once over the whole store.
    #[must_use]
    pub fn sweep_steps(&self) -> usize {
        self.shards.len()
    }

    /// Takes out what has expired at `now` from one part of the store, the `step`-th modulo
    /// [`MemoryStore::sweep_steps`]. No lock is held for longer than a few hundred counters take, so decisions go on
    /// meanwhile.
    pub fn sweep_step(&self, step: usize, now: Timestamp) {
        let shard = &self.shards[step % self.shards.len()];
        let mut from = Some(0);
        while let Some(start) = from {
            let mut shard = shard.lock();
            let begun = Instant::now();
            let (next, expired) = shard.sweep(start, SWEEP_STRIDE, now);
            drop(shard);
            self.holds.record(begun.elapsed());
            self.live.fetch_sub(expired, Ordering::Relaxed);
            self.expired.fetch_add(expired as u64, Ordering::Relaxed);
            from = next;
        }
    }

    /// Decides the asks of one request: [`Store::take`] without the wait that others need.
    #[must_use]
    pub fn decide(&self, checks: &[LimitCheck<'_>], scope: Scope, now: Timestamp) -> Decisions {
        let decisions = match scope {
            Scope::Request if checks.len() > 1 => self.decide_together(checks, now),
            _ => checks
                .iter()
                .map(|check| {
                    let mut shard = self.shards[self.index(check.key)].lock();
                    self.counting(&mut shard, |shard| {
                        shard.take(check, check.over_limit_policy_in(scope), now)
                    })
                })
                .collect(),
        };
        if self.live.load(Ordering::Relaxed) > self.max_counters {
            self.make_room(checks, now);
        }
        decisions
    }

    /// Reserves hits: [`Store::reserve`] without a future.
    pub fn reserve_now(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        let reservation = {
            let mut shard = self.shards[self.index(check.key)].lock();
            self.counting(&mut shard, |shard| shard.reserve(check, request, now))
        };
        if self.live.load(Ordering::Relaxed) > self.max_counters {
            self.make_room(std::slice::from_ref(check), now);
        }
        reservation
    }

    /// Gives reserved hits back: [`Store::release`] without a future.
    pub fn release_now(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) {
        let Reservation { hits, counted, .. } = reservation;
        let mut shard = self.shards[self.index(check.key)].lock();
        self.counting(&mut shard, |shard| shard.release(check, counted, unused.min(hits), now));
    }

    /// Gives back what `ask` took before, for it is not to count after all.
    #[cfg(feature = "coordinated")]
    pub(super) fn give_back(&self, check: &LimitCheck<'_>, now: Timestamp) {
        let mut shard = self.shards[self.index(check.key)].lock();
        self.counting(&mut shard, |shard| shard.give_back(check, now));
    }

    /// All or nothing over several asks: every lock that is needed, in the one order that all requests keep to; then
    /// one ask after the other; and if one is over, all are undone.
    fn decide_together(&self, checks: &[LimitCheck<'_>], now: Timestamp) -> Decisions {
        let mut indexes: SmallVec<[usize; 4]> = checks.iter().map(|check| self.index(check.key)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let mut shards: SmallVec<[MutexGuard<'_, Shard>; 4]> =
            indexes.iter().map(|index| self.shards[*index].lock()).collect();
        let place = |check: &LimitCheck<'_>| indexes.partition_point(|index| *index < self.index(check.key));

        let mut undos: SmallVec<[Undo; 4]> = SmallVec::new();
        let mut decisions: Decisions = checks
            .iter()
            .map(|check| {
                let shard = &mut shards[place(check)];
                undos.push(shard.undo(check));
                self.counting(shard, |shard| shard.take(check, OverLimitPolicy::Ignore, now))
            })
            .collect();
        if decisions.iter().any(|decision| decision.over) {
            for (check, undo) in checks.iter().zip(undos).rev() {
                self.counting(&mut shards[place(check)], |shard| shard.restore(undo));
            }
            for (check, decision) in checks.iter().zip(&mut decisions) {
                if decision.over {
                    shards[place(check)].refuse(check, now);
                } else {
                    *decision = shards[place(check)].look(check, now);
                }
            }
        }
        decisions
    }

    /// Does something to a shard, and keeps the books on its counters.
    fn counting<T>(&self, shard: &mut Shard, act: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.len();
        let done = act(shard);
        let after = shard.len();
        if after > before {
            self.live.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.live.fetch_sub(before - after, Ordering::Relaxed);
        }
        done
    }

    /// Drops counters until there are no more than may be: where the new ones are, so that it costs a lock that was
    /// just held; elsewhere if there is nothing else to drop.
    #[cold]
    fn make_room(&self, checks: &[LimitCheck<'_>], now: Timestamp) {
        let first = checks.first().map_or(0, |check| self.index(check.key));
        for turn in 0..self.shards.len() {
            let shard = &self.shards[(first + turn) % self.shards.len()];
            while self.live.load(Ordering::Relaxed) > self.max_counters {
                let evicted = {
                    let mut shard = shard.lock();
                    // the last one of a shard may be the one that was just made
                    shard.len() > usize::from(turn == 0 && self.shards.len() > 1)
                        && self.counting(&mut shard, |shard| shard.evict_cheapest(now))
                };
                if !evicted {
                    break;
                }
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The shard of a key.
    #[expect(clippy::cast_possible_truncation, reason = "any of its bits will do")]
    fn index(&self, key: CounterKey) -> usize {
        key.shard() as usize & (self.shards.len() - 1)
    }
}

impl Store for MemoryStore {
    fn take(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
    ) -> impl Future<Output = Result<Decisions, StoreError>> + Send {
        future::ready(Ok(self.decide(checks, scope, now)))
    }

    fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> impl Future<Output = Result<Reservation, StoreError>> + Send {
        future::ready(Ok(self.reserve_now(check, request, now)))
    }

    fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.release_now(check, reservation, unused, now);
        future::ready(Ok(()))
    }
}
