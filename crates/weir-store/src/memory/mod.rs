//! The embedded store: a bounded number of counters in this process's memory.
//!
//! Counters are spread over shards, each a hash table behind its own lock. A lock is held for one check, or for a few
//! that count together or not at all, and never across an `await`. All tiers of a check are in one shard, so deciding
//! them together takes one lock.

mod all_or_none;
mod backed;
mod lines;
mod metrics;
mod notes;
mod places;
mod pooled_checks;
mod pools;
mod shard;
mod timers;
mod waits;

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use self::{
    lines::Lines,
    places::{Asked, PlaceTable},
    pools::MemoryPools,
    shard::{Among, Shard},
};
pub use self::{
    lines::{Arrival, Receipt},
    notes::{Counted, Notes},
    shard::{Slot, TakeRequest},
    timers::Timers,
};
use super::{
    CounterSight, Decisions, EndedPlace, PlaceRequest, ReturnedHits, SightSource, Store, StoreError,
    TakeOptions, TakenPlaces, brief_lock, has_repeated, wait_room::WaitRoom,
};
use weir_limit::{
    Basis, CounterKey, Decision, Direction, Hits, LimitCheck, OverLimitPolicy, Period, PlaceAsk, PlaceCheck,
    PlaceDecision, PlaceName, Reservation, ReservationRequest, ReservedHits, Scope, Timestamp,
    algorithm::CounterState,
    request_bucket::{BucketName, BucketReply, BucketRequest},
};
use weir_observe::PlaceStats;

/// Small enough that growing a table, which moves all its counters under the lock, takes well below a millisecond.
const COUNTERS_PER_SHARD: usize = 4096;

/// Above this a shard evicts buckets that come with requests. It bounds a search: all of one name are in one shard.
const MAX_IN_SHARD: usize = 2 * COUNTERS_PER_SHARD;

/// One part of the table in so many is for limits that come with requests, the rest for rules. Free room serves both.
const SHARE_OF_REQUESTS: usize = 4;

/// Counters that are not removable may exceed the bound by a quarter and this: far more than concurrent decisions add.
const SLACK: usize = 1024;

/// The number of shards in which a decision looks for a removable counter.
const NOTED_SHARDS: usize = 8;

const SWEEP_STRIDE: usize = 512;

/// Counters in this process's memory. `N` is what it notes about each: nothing, unless another store is behind it.
#[derive(Debug)]
pub struct MemoryStore<N: Notes = ()> {
    shards: Box<[Mutex<Shard<N>>]>,
    max_counters: usize,
    /// In all shards, so that the bound needs no lock.
    live: AtomicUsize,
    /// Those among `live` of limits that come with requests.
    of_requests: AtomicUsize,
    evicted: AtomicU64,
    /// Those among `evicted` that were not [removable](Notes::is_removable).
    lost: AtomicU64,
    expired: AtomicU64,
    pools: MemoryPools,
    places: PlaceTable,
    timers: Arc<Timers>,
    wait_room: Arc<WaitRoom>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Counters held now, including expired ones that were not swept yet.
    pub live: usize,
    pub max: usize,
    /// Counters evicted before they expired, because the store was full.
    pub evicted: u64,
    /// Counters removed after they had expired.
    pub expired: u64,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// Returns an empty store for up to `max_counters` counters, at least one.
    pub fn new(max_counters: usize) -> Self {
        Self::with_notes(max_counters)
    }

    /// Decides about hits of a known rule, as [`Self::decide`] does for those of a request.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    pub fn take(&self, request: &TakeRequest<'_>, now: Timestamp) -> Decision {
        self.take_in_place(request, false, now).unwrap_or_else(|| self.take_bounded(request, now))
    }

    #[inline(never)]
    fn take_bounded(&self, request: &TakeRequest<'_>, now: Timestamp) -> Decision {
        let decision = self.take_apart(request, None, now);
        self.bound(request.key, now);
        decision
    }

    /// [`Self::take`], if the counters are there, the hits fit now, and nobody waits; otherwise changes nothing.
    pub fn take_fitting(&self, request: &TakeRequest<'_>, now: Timestamp) -> Option<Decision> {
        self.take_in_place(request, true, now)
    }
}

impl<N: Notes> MemoryStore<N> {
    pub fn with_notes(max_counters: usize) -> Self {
        let max_counters = max_counters.max(1);
        let shards = max_counters.div_ceil(COUNTERS_PER_SHARD).next_power_of_two();
        let timers = Arc::new(Timers::default());
        Self {
            shards: (0..shards).map(|_| Mutex::new(Shard::new(Lines::new(&timers)))).collect(),
            max_counters,
            live: AtomicUsize::new(0),
            of_requests: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            pools: MemoryPools::new(max_counters),
            places: PlaceTable::new(max_counters),
            timers,
            wait_room: Arc::default(),
        }
    }

    pub fn usage(&self) -> Usage {
        Usage {
            live: self.live.load(Ordering::Relaxed),
            max: self.max_counters,
            evicted: self.evicted.load(Ordering::Relaxed),
            expired: self.expired.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of calls of [`MemoryStore::sweep_step`] that visit the whole store once.
    pub fn sweep_steps(&self) -> usize {
        self.shards.len()
    }

    /// Removes expired counters of part `step` modulo [`Self::sweep_steps`]. Locks a few hundred counters at a time.
    pub fn sweep_step(&self, step: usize, now: Timestamp) {
        self.pools.sweep(step, now);
        self.places.sweep(step, self.sweep_steps(), now);
        let shard = &self.shards[step % self.shards.len()];
        let mut from = Some(0);
        while let Some(start) = from {
            let mut shard = shard.lock();
            let (next, expired) = self.counting(&mut shard, |shard| shard.sweep(start, SWEEP_STRIDE, now));
            drop(shard);
            self.expired.fetch_add(expired as u64, Ordering::Relaxed);
            from = next;
        }
    }

    /// Decides the checks of one request: [`Store::take`] without a future.
    pub fn decide(&self, checks: &[LimitCheck<'_>], scope: Scope, now: Timestamp) -> Decisions {
        let mut decisions = Decisions::new();
        // as most requests have
        if let [check] = checks {
            decisions.push(self.decide_one(check, scope, now));
            return decisions;
        }
        match scope {
            Scope::Request if checks.iter().any(LimitCheck::stands) => {
                decisions = self.decide_beside_standing(checks, now);
            }
            Scope::Request => decisions = self.decide_together(checks, false, now),
            Scope::Descriptor if has_repeated(checks) => decisions = self.decide_by_counter(checks, now),
            // pushed one by one: `collect` costs as much as a decision
            Scope::Descriptor => {
                for check in checks {
                    decisions.push(self.decide_by(check, check.over_limit_policy_in(scope), now));
                }
            }
        }
        // once all are decided, since a store behind this one has read their counters; what requests bring makes room
        // for the whole request
        let mut keys = checks.iter().map(|check| check.key);
        if let Some(key) = keys.clone().find(|key| key.is_of_request()).or(keys.next()) {
            self.bound(key, now);
        }
        decisions
    }

    pub fn decide_one(&self, check: &LimitCheck<'_>, scope: Scope, now: Timestamp) -> Decision {
        let decision = self.decide_by(check, check.over_limit_policy_in(scope), now);
        self.bound(check.key, now);
        decision
    }

    /// The caller calls `bound`.
    #[inline]
    fn decide_by(&self, check: &LimitCheck<'_>, policy: OverLimitPolicy, now: Timestamp) -> Decision {
        if check.pool.is_some()
            && let Some(decision) =
                self.with_pool(check, now, |pool, beside| pool.decide(check, beside, true).0)
        {
            return decision;
        }
        let request = TakeRequest::of(check, policy);
        self.take_in_place(&request, false, now)
            .unwrap_or_else(|| self.take_apart(&request, Some(check), now))
    }

    /// Takes the hits if one or two counters change that are there, nobody waits and, if they `must_fit`, they fit.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn take_in_place(&self, request: &TakeRequest<'_>, must_fit: bool, now: Timestamp) -> Option<Decision> {
        if N::NOTED || request.direction != Direction::Take {
            return None;
        }
        brief_lock::lock(&self.shards[self.index(request.key)]).take_in_place(request, must_fit, now)
    }

    /// For several tiers, a new counter, or one that others wait for. Notes what changes if there is a `check`. The
    /// caller calls `bound`.
    #[inline(never)]
    fn take_apart(
        &self,
        request: &TakeRequest<'_>,
        check: Option<&LimitCheck<'_>>,
        now: Timestamp,
    ) -> Decision {
        self.on_shard(request.key, |shard| shard.take(request, check, now))
    }

    pub fn reserve_now(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Reservation {
        if let Some(reservation) = self.reserve_shared(check, request, now) {
            return reservation;
        }
        let reservation = self.on_shard(check.key, |shard| shard.reserve(check, request, now));
        self.bound(check.key, now);
        reservation
    }

    #[expect(clippy::needless_pass_by_value, reason = "consumed, so that no hit is given back twice")]
    pub fn release_now(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) {
        let Reservation { hits, counted, .. } = reservation;
        if self.release_shared(check, counted.from, unused.min(hits), now) {
            return;
        }
        self.on_shard(check.key, |shard| shard.release(check, counted, unused.min(hits), now));
    }

    pub fn decide_bucket_now(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> BucketReply {
        let key = name.counter(&request.kind());
        let reply = {
            let mut shard = self.shards[self.index(key)].lock();
            self.counting(&mut shard, |shard| {
                let reply = shard.decide_bucket(name, request, now);
                while shard.len() > MAX_IN_SHARD
                    && shard.evict_cheapest(false, Among::Requests, now).is_some()
                {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                reply
            })
        };
        self.bound(key, now);
        reply
    }

    /// Returns the time until all buckets of `name` are full; none if there are none. Deletes them if asked to. Looks
    /// at all counters of a shard, 8,192 at most, and holds the lock for a few hundred at a time.
    pub fn find_buckets_now(&self, name: &BucketName<'_>, deletes: bool, now: Timestamp) -> Option<Period> {
        let mut latest = None;
        self.retain_buckets(name, |slot| {
            latest = latest.max(Some(slot.counter.idle_at()));
            !deletes
        });
        full_after(latest, now)
    }

    fn retain_buckets(&self, name: &BucketName<'_>, mut visit: impl FnMut(&mut Slot<N>) -> bool) {
        let shard = &self.shards[self.shard_index(name.shard())];
        let mut from = Some(0);
        while let Some(start) = from {
            let mut shard = shard.lock();
            from = self.counting(&mut shard, |shard| {
                shard.retain_all(name.shard(), start, SWEEP_STRIDE, &mut visit)
            });
        }
    }

    /// Returns the decision about `hits` of `check`, without counting.
    pub fn look(&self, check: &LimitCheck<'_>, hits: Hits, now: Timestamp) -> Decision {
        self.with_pool(check, now, |pool, beside| pool.look_at(hits, beside))
            .unwrap_or_else(|| self.shards[self.index(check.key)].lock().look(check, hits, now))
    }

    /// Returns the counters of `check`, one for each of its tiers: unused ones where there are none.
    pub fn counters(&self, check: &LimitCheck<'_>, now: Timestamp) -> smallvec::SmallVec<[CounterState; 1]> {
        let states = self.shards[self.index(check.key)].lock().states(check);
        let tiers = check.own_tiers().iter();
        tiers
            .zip(states)
            .map(|(tier, state)| state.unwrap_or_else(|| CounterState::unused(tier, now)))
            .collect()
    }

    /// [`Store::sight`] without a future.
    pub fn sight_now(&self, check: &LimitCheck<'_>, now: Timestamp) -> CounterSight {
        let pool = check.pool.is_some().then(|| self.look(check, check.hits.max(Hits(1)), now));
        CounterSight::of(self.counters(check, now), pool, SightSource::Memory, now)
    }

    pub fn give_back(&self, check: &LimitCheck<'_>, now: Timestamp) {
        let check = LimitCheck { direction: Direction::GiveBack, ..check.copied() };
        self.decide_by(&check, check.over_limit_policy(), now);
    }

    /// Takes places: [`Store::take_places`] without a future.
    pub fn take_places_now(&self, places: &[PlaceRequest<'_>], serial: u64, now: Timestamp) -> TakenPlaces {
        let name = PlaceName::new(now, serial, false);
        let mut decisions = SmallVec::new();
        for PlaceRequest { check, stats, reserved } in places {
            let (key, limit) = (check.key, check.limit);
            let Asked { is_taken, before } = match check.ask {
                PlaceAsk::Take => self.places.take(key, (name, *reserved), limit, stats, now),
                PlaceAsk::Look => {
                    let before = self.places.look(key, limit.give_up_after, now);
                    Asked { is_taken: before < limit.most as usize, before }
                }
                PlaceAsk::Nothing | PlaceAsk::Close => Asked { is_taken: true, before: 0 },
            };
            self.bound(key, now);
            let before = u32::try_from(before).unwrap_or(u32::MAX);
            decisions.push(PlaceDecision { over: !is_taken, before, basis: Basis::Counters });
        }
        TakenPlaces { name, decisions }
    }

    /// Frees places: [`Store::end_places`] without a future.
    pub fn end_places_now(&self, ended: &[EndedPlace<'_>], now: Timestamp) -> ReturnedHits {
        let end = |EndedPlace { check, stats, name, is_undone, .. }: &EndedPlace<'_>| {
            let returned = self.places.end(check.key, *name, check.limit.give_up_after, now);
            match (name, returned) {
                (Some(_), None) => stats.end_unknown(),
                (Some(_), Some(_)) if *is_undone => stats.undo(),
                (Some(name), Some(_)) => stats.end(now.since(name.start()).into()),
                (None, Some(_)) => stats.end_newest(),
                (None, None) => {}
            }
            returned
        };
        ended.iter().map(end).collect()
    }

    /// Gives up places of this age. Returns their number.
    pub fn free_places_now(&self, check: &PlaceCheck<'_>, older_than: Period, now: Timestamp) -> u64 {
        self.places.free(check.key, older_than, now) as u64
    }

    /// Returns what was given up: [`Store::given_up`].
    pub fn given_up_now(&self, check: &PlaceCheck<'_>, now: Timestamp) -> Vec<ReservedHits> {
        self.places.given_up(check.key, check.limit.give_up_after, now)
    }

    /// Divides each pool between `instances`, of which this is one, unless its rule says `coordination: local`.
    pub fn divide_pools_between(&self, instances: usize) {
        self.pools.divide_between(instances);
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
    fn counting<T>(&self, shard: &mut Shard<N>, act: impl FnOnce(&mut Shard<N>) -> T) -> T {
        let before = [Among::All, Among::Requests].map(|among| shard.count(among));
        let done = act(shard);
        let after = [Among::All, Among::Requests].map(|among| shard.count(among));
        if after != before {
            // fewer are so many more, modulo the size of the number
            self.live.fetch_add(after[0].wrapping_sub(before[0]), Ordering::Relaxed);
            self.of_requests.fetch_add(after[1].wrapping_sub(before[1]), Ordering::Relaxed);
        }
        done
    }

    const fn slack(&self) -> usize {
        SLACK + self.max_counters / 4
    }

    /// Evicts counters while there are too many, those of the shard of `key` first. Places take room from them.
    pub fn bound(&self, key: CounterKey, now: Timestamp) {
        if self.live.load(Ordering::Relaxed) + self.places.weight() > self.max_counters {
            self.make_room(key, now);
        }
    }

    /// Begins in the shard of `key`: a flood evicts its own. What is not removable may exceed the bound by the `slack`.
    #[cold]
    fn make_room(&self, key: CounterKey, now: Timestamp) {
        let slack = if N::NOTED { self.slack() } else { 0 };
        let taken = self.room_for_requests(key) + self.places.weight();
        let max = self.max_counters.saturating_sub(taken);
        let first = self.index(key);
        for turn in 0..self.shards.len() {
            let shard = &self.shards[(first + turn) % self.shards.len()];
            let live = || self.live.load(Ordering::Relaxed);
            // what is removable leaves before memory counts as crowded
            if N::NOTED && turn >= NOTED_SHARDS && live() <= max + slack / 2 {
                break;
            }
            while live() > max {
                let any = live() > max + slack;
                // what may be removed is kept elsewhere, so nobody loses it
                let among = if N::NOTED && !any { Among::All } else { self.evicted_for(key) };
                let evicted = {
                    let mut shard = shard.lock();
                    // the last counter of a shard may be the one that was just added; one that a request brings
                    // takes no room from others while there is none
                    let may_be_last = turn > 0 || self.shards.len() == 1 || among == Among::Requests;
                    if shard.count(among) > usize::from(!may_be_last) {
                        self.counting(&mut shard, |shard| shard.evict_cheapest(any, among, now))
                    } else {
                        None
                    }
                };
                let Some(notes) = evicted else { break };
                self.evicted.fetch_add(1, Ordering::Relaxed);
                if !notes.is_removable() {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Evicts from requests above their share, else from the kind of `key`: so no request evicts the counter of a rule.
    fn evicted_for(&self, key: CounterKey) -> Among {
        let of_requests = self.of_requests.load(Ordering::Relaxed);
        let has_enough = of_requests > self.max_counters / SHARE_OF_REQUESTS;
        if has_enough || key.is_of_request() && of_requests > 0 { Among::Requests } else { Among::Rules }
    }

    /// Rules leave room for one counter of requests while these are below their share, so as not to keep them out.
    fn room_for_requests(&self, key: CounterKey) -> usize {
        let of_requests = self.of_requests.load(Ordering::Relaxed);
        usize::from(!key.is_of_request() && of_requests < self.max_counters / SHARE_OF_REQUESTS)
    }

    fn index(&self, key: CounterKey) -> usize {
        self.shard_index(key.shard())
    }

    #[expect(clippy::cast_possible_truncation, reason = "any of its bits are suitable")]
    fn shard_index(&self, shard: u64) -> usize {
        shard as usize & (self.shards.len() - 1)
    }
}

/// The time until the last of some buckets, at `latest`, is full; none if all are.
pub fn full_after(latest: Option<Timestamp>, now: Timestamp) -> Option<Period> {
    // the instant is rounded up
    latest.map(|idle_at| idle_at.since(now)).filter(|period| *period > Period::from_millis(1))
}

impl Store for MemoryStore {
    fn memory(&self) -> Option<&MemoryStore> {
        Some(self)
    }

    fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        _: TakeOptions<'_>,
    ) -> impl Future<Output = Result<Decisions, StoreError>> + Send {
        future::ready(Ok(self.decide(checks, scope, now)))
    }

    fn alone(&self) -> Option<&MemoryStore> {
        Some(self)
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

    fn take_places(
        &self,
        places: &[PlaceRequest<'_>],
        serial: u64,
        now: Timestamp,
        _: TakeOptions<'_>,
    ) -> impl Future<Output = Result<TakenPlaces, StoreError>> + Send {
        future::ready(Ok(self.take_places_now(places, serial, now)))
    }

    fn end_places(
        &self,
        ended: &[EndedPlace<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<ReturnedHits, StoreError>> + Send {
        future::ready(Ok(self.end_places_now(ended, now)))
    }

    fn free_places(
        &self,
        check: &PlaceCheck<'_>,
        _: &Arc<PlaceStats>,
        older_than: Period,
        now: Timestamp,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        future::ready(Ok(self.free_places_now(check, older_than, now)))
    }

    fn given_up(&self, check: &PlaceCheck<'_>, _: &Arc<PlaceStats>, now: Timestamp) -> Vec<ReservedHits> {
        self.given_up_now(check, now)
    }

    fn decide_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> impl Future<Output = Result<BucketReply, StoreError>> + Send {
        future::ready(Ok(self.decide_bucket_now(name, request, now)))
    }

    fn find_buckets(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> impl Future<Output = Result<Option<Period>, StoreError>> + Send {
        future::ready(Ok(self.find_buckets_now(name, deletes, now)))
    }
}
