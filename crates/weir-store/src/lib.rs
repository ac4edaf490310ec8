//! Stores, which hold the counters. A [`Store`] runs the pure algorithms of [`weir_limit`] atomically.
//!
//! | to | see |
//! | --- | --- |
//! | decide in this process's memory | [`MemoryStore`], [`pools`] |
//! | keep requests in flight | [`Store::take_places`], [`TakenPlaces`] |
//! | let callers wait | [`WaitRoom`], [`WaitingLines`] |
//! | write a store that instances share | [`remote`], [`pool_command`], [`place_command`], [`encoding`] |
//! | name counters and keys | [`path`], [`name`] |
//! | tell the time, and run tasks | [`clock`], [`runtime`], [`wakeup`] |

pub mod board;
pub mod brief_lock;
pub mod clock;
pub mod encoding;
pub mod memory;
pub mod name;
pub mod path;
pub mod place_command;
pub mod pool_command;
pub mod pools;
pub mod remote;
pub mod runtime;
mod sight;
pub mod table_metrics;
mod target;
mod wait_room;
pub mod wakeup;

use std::{future::Future, sync::Arc, time::Duration};

use smallvec::SmallVec;

pub use memory::{Arrival, Counted, MemoryStore, Notes, Receipt, TakeRequest, Timers, Usage};
pub use sight::{CounterSight, LocalSight, SightSource};
pub use wait_room::{Ticket, WaitBounds, WaitRoom, WaitingLines};

use weir_limit::{
    CounterKey, Decision, Direction, Hits, LimitCheck, Period, PlaceCheck, PlaceDecision, PlaceName,
    Reservation, ReservationRequest, ReservedHits, Scope, SharedCounts, Timestamp,
    line::Estimate,
    part::InstanceRank,
    request_bucket::{BucketName, BucketReply, BucketRequest},
};
use weir_observe::{DecisionRecord, PlaceStats};

/// The decisions about the checks of one request, in their order.
pub type Decisions = SmallVec<[Decision; 2]>;

/// The most checks that are compared with each other, which is quicker than to sort them.
const FEW_CHECKS: usize = 16;

/// Whether several of `checks` are about one counter.
pub fn has_repeated(checks: &[LimitCheck<'_>]) -> bool {
    let is_again =
        |(i, check): (usize, &LimitCheck<'_>)| checks[..i].iter().any(|other| other.key == check.key);
    if checks.len() <= FEW_CHECKS {
        return checks.iter().enumerate().any(is_again);
    }
    let mut keys: Vec<CounterKey> = checks.iter().map(|check| check.key).collect();
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair[0] == pair[1])
}

/// Returns the places of those of `checks` that count on the same counter, counter by counter, each in their order.
pub fn places_by_counter(checks: &[LimitCheck<'_>]) -> Vec<SmallVec<[usize; 2]>> {
    let mut places: Vec<usize> = (0..checks.len()).collect();
    places.sort_by_key(|i| checks[*i].key);
    places.chunk_by(|a, b| checks[*a].key == checks[*b].key).map(SmallVec::from_slice).collect()
}

pub trait Store: Send + Sync + 'static {
    /// Decides the limit checks of one request as of `now`, with one [`Decision`] each, and counts their hits. Fails if
    /// the store gives up. The hits may have been counted nevertheless.
    fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> impl Future<Output = Result<Decisions, StoreError>> + Send;

    fn take(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
    ) -> impl Future<Output = Result<Decisions, StoreError>> + Send {
        self.take_with(checks, scope, now, TakeOptions::default())
    }

    /// The store in memory, if it decides all checks alone: a future would cost as much as the decision.
    fn alone(&self) -> Option<&MemoryStore> {
        None
    }

    /// Takes from `request.least` to `request.want` hits in advance, in all tiers of `check` or in none; hits that do
    /// not fit never count. The caller may use them before [`Reservation::until`], and must [release](Self::release)
    /// the rest. Ignores [`LimitCheck::hits`] and [`LimitCheck::direction`]. Fails if the store gives up. Up to
    /// `request.want` hits may have been counted nevertheless.
    fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> impl Future<Output = Result<Reservation, StoreError>> + Send;

    /// Gives up to `unused` hits of `reservation` back; `check` must be the same. A counter never falls below zero. A
    /// fixed window that has ended gets nothing, and a sliding window fewer hits if an earlier reservation ends later.
    /// Fails if the store gives up. The hits may have been given back nevertheless.
    fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes a place in each counter of `places` that has room. `serial` becomes a part of the name. Returns one decision
    /// for each; a request that is rejected then [frees](Self::end_places) what it has.
    ///
    /// # Errors
    ///
    /// Returns an error if the store gives up, which then frees what it may have taken, or if it keeps no places
    /// ([`StoreError::Unsupported`]).
    fn take_places(
        &self,
        places: &[PlaceRequest<'_>],
        serial: u64,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> impl Future<Output = Result<TakenPlaces, StoreError>> + Send {
        let _ = (places, serial, now, options);
        std::future::ready(Err(NO_PLACES))
    }

    /// Frees places, and counts what became of each in its stats. Those that are not there stay so. A store that is
    /// elsewhere frees them later, and the caller waits only for what its requests have [reserved](EndedPlace::awaits).
    /// Returns these hits, one for each of `ended`; none of a place that is not there, or not known in time: then it is
    /// given up.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`], if the store keeps no places.
    fn end_places(
        &self,
        ended: &[EndedPlace<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<ReturnedHits, StoreError>> + Send {
        let _ = (ended, now);
        std::future::ready(Err(NO_PLACES))
    }

    /// Returns, once, the hits that requests of the counter of `check` had reserved whose places were given up since the
    /// last call, as far as this instance knows.
    fn given_up(&self, check: &PlaceCheck<'_>, stats: &Arc<PlaceStats>, now: Timestamp) -> Vec<ReservedHits> {
        let _ = (check, stats, now);
        Vec::new()
    }

    /// Makes the counters of `check` as if they had never counted a hit, here and in a shared store. Ignores
    /// [`LimitCheck::hits`] and [`LimitCheck::direction`].
    ///
    /// # Errors
    ///
    /// Returns an error if the store gives up. The counters may have been cleared nevertheless.
    fn clear(
        &self,
        check: &LimitCheck<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move {
            let all = all_given_back(check);
            self.take(std::slice::from_ref(&all), Scope::Descriptor, now).await.map(drop)
        }
    }

    /// Frees the places of `check` that have been taken for `older_than`. Returns their number.
    ///
    /// # Errors
    ///
    /// As [`Store::take_places`].
    fn free_places(
        &self,
        check: &PlaceCheck<'_>,
        stats: &Arc<PlaceStats>,
        older_than: Period,
        now: Timestamp,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = (check, stats, older_than, now);
        std::future::ready(Err(NO_PLACES))
    }

    /// Tells all instances that share this store `note`, this one included. Returns whether any of them hears it: by
    /// default each instance counts alone.
    ///
    /// # Errors
    ///
    /// Returns an error if the store gives up, or has no room for it.
    fn announce(&self, note: &[u8]) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = note;
        std::future::ready(Ok(false))
    }

    /// Waits for notes of instances. Returns each with its age.
    fn announcements(&self) -> impl Future<Output = Vec<(Period, Vec<u8>)>> + Send {
        std::future::pending()
    }

    /// Replaces what this instance tells the others of itself.
    fn summarize(&self, summary: Vec<u8>) {
        drop(summary);
    }

    /// Returns what instances tell of themselves, by their names; none if they do not.
    ///
    /// # Errors
    ///
    /// Returns an error if the store gives up.
    fn summaries(&self) -> impl Future<Output = Result<Option<Summaries>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// From now on each decision of `check` asks the store, and nothing is held here, until this instance
    /// [forgets](Store::forget) the counters. What it has not reported yet [is](Unreported) reported or not.
    fn hold_nothing(&self, check: &LimitCheck<'_>, unreported: Unreported, now: Timestamp) {
        let _ = (check, unreported, now);
    }

    /// Forgets what is known here of the counters of `check` in the shared store.
    fn forget(&self, check: &LimitCheck<'_>, now: Timestamp) {
        let _ = (check, now);
    }

    /// Returns the longest that a decision waits, `WEIR_DECISION_BUDGET`. By default none waits.
    fn longest_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns how instances share their counts through this store. By default each counts alone.
    fn shared_counts(&self) -> SharedCounts {
        SharedCounts::default()
    }

    /// Returns what has to be added to the time here to have that of the store, in nanoseconds.
    fn clock_offset(&self) -> i64 {
        0
    }

    /// The store in memory whose [lines](MemoryStore::enter) this store's callers wait in.
    fn memory(&self) -> Option<&MemoryStore> {
        None
    }

    /// The store in whose line callers of `check` wait; none if its counters are elsewhere: the line asks this store.
    fn lines_for(&self, check: &LimitCheck<'_>) -> Option<&MemoryStore> {
        let _ = check;
        self.memory()
    }

    /// Returns the callers that wait. None if the store keeps no account of them.
    fn wait_room(&self) -> Option<&Arc<WaitRoom>> {
        self.memory().map(MemoryStore::wait_room)
    }

    /// Returns the place of this instance among those that ask this store for hits of `check`. By default it is alone.
    fn instance_rank(&self, check: &LimitCheck<'_>) -> InstanceRank {
        let _ = check;
        InstanceRank::ALONE
    }

    /// Returns what is known here of the counters of `check`, which are elsewhere. None if that is nothing.
    fn estimate(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        let _ = (check, now);
        None
    }

    /// Returns how the counters of `check` stand, for people: nothing is counted. A shared store is asked by name, and has
    /// some time to answer.
    fn sight(&self, check: &LimitCheck<'_>, now: Timestamp) -> impl Future<Output = CounterSight> + Send {
        let sight = self.memory().map(|memory| memory.sight_now(check, now));
        std::future::ready(sight.unwrap_or_else(|| CounterSight::unused(check, now)))
    }

    /// [`Store::reserve`] for callers that wait: a slow store gets up to `patience`, not only the budget of decisions.
    fn reserve_for_waiters(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        patience: Period,
        now: Timestamp,
    ) -> impl Future<Output = Result<Reservation, StoreError>> + Send {
        let _ = patience;
        self.reserve(check, request, now)
    }

    /// Decides `request` about the bucket of `name`, whose parameters come with the request. Fails if the store gives
    /// up, when the tokens may have been taken nevertheless, or if it cannot keep such a bucket
    /// ([`StoreError::Unsupported`]).
    fn decide_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> impl Future<Output = Result<BucketReply, StoreError>> + Send {
        let _ = (name, request, now);
        std::future::ready(Err(NO_BUCKETS))
    }

    /// The time until all buckets of `name` are full or forgotten; none if there are none. `deletes` makes them full.
    fn find_buckets(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> impl Future<Output = Result<Option<Period>, StoreError>> + Send {
        let _ = (name, deletes, now);
        std::future::ready(Err(NO_BUCKETS))
    }
}

/// What instances tell of themselves, each with its name.
pub type Summaries = Arc<[(String, Vec<u8>)]>;

/// More than any limit admits.
const ALL_HITS: Hits = Hits(u32::MAX as u64);

/// Returns `check` as one that gives back whatever its counters have.
pub fn all_given_back<'a>(check: &'a LimitCheck<'_>) -> LimitCheck<'a> {
    LimitCheck { hits: ALL_HITS, direction: Direction::GiveBack, settles: false, ..check.copied() }
}

/// What becomes of hits that a shared store has not counted or taken back yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreported {
    /// The store has them before its counters are [cleared](Store::clear).
    Sent,
    /// It was cleared before.
    Dropped,
}

const NO_BUCKETS: StoreError =
    StoreError::Unsupported("this store keeps no buckets whose parameters come with requests");

const NO_PLACES: StoreError = StoreError::Unsupported("this store keeps no requests in flight");

/// What ended requests had reserved, in their order; none if it is not known.
pub type ReturnedHits = SmallVec<[Option<ReservedHits>; 2]>;

/// A descriptor that asks for a place of a request in flight.
#[derive(Clone, Copy, Debug)]
pub struct PlaceRequest<'a> {
    /// The descriptor, and the limit of its rule.
    pub check: &'a PlaceCheck<'a>,
    /// Where the store counts what becomes of places.
    pub stats: &'a Arc<PlaceStats>,
    /// The hits that the request has reserved, which its end returns. A place that is
    /// [not limited](weir_limit::InFlight::UNLIMITED) remembers them, and the caller does not wait for a store that is
    /// elsewhere.
    pub reserved: Hits,
}

/// The places that a request has taken.
#[derive(Clone, Debug)]
pub struct TakenPlaces {
    /// Their name.
    pub name: PlaceName,
    /// In the order of the requests.
    pub decisions: SmallVec<[PlaceDecision; 2]>,
}

/// A place to be freed.
#[derive(Clone, Copy, Debug)]
pub struct EndedPlace<'a> {
    /// The descriptor that took it.
    pub check: &'a PlaceCheck<'a>,
    /// Where the store counts what becomes of places.
    pub stats: &'a Arc<PlaceStats>,
    /// Its name, which others may have made up; none for the newest one.
    pub name: Option<PlaceName>,
    /// Whether the caller waits for what the request has reserved.
    pub awaits: bool,
    /// Whether the request was not admitted after all.
    pub is_undone: bool,
}

/// How a store decides a request, besides what the request says.
#[derive(Clone, Copy, Debug, Default)]
pub struct TakeOptions<'a> {
    /// Where the coordination modes and the waits for a shared store are recorded. None if the request is not traced.
    pub record: Option<&'a DecisionRecord>,
    /// How long the caller lets the request wait for a shared store; none for as long as the store takes.
    pub wait: Option<Duration>,
    /// Whether the caller gets the name of a request that it begins, by which it ends.
    pub takes_names: bool,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A store that counts over the network could not be reached in time.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store cannot do this, whatever its state.
    #[error("{0}")]
    Unsupported(&'static str),
}
