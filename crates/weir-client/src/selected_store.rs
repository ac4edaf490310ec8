//! The store that the settings select.

use std::{sync::Arc, time::Duration};

#[cfg(feature = "redis")]
use weir_coordinate::Coordinated;
#[cfg(feature = "disk")]
use weir_disk::DiskStore;
use weir_limit::{
    Hits, LimitCheck, Period, PlaceCheck, Reservation, ReservationRequest, ReservedHits, Scope, SharedCounts,
    Timestamp,
    line::Estimate,
    part::InstanceRank,
    request_bucket::{BucketName, BucketReply, BucketRequest},
};
use weir_observe::{Metric, PlaceStats, Source};
#[cfg(feature = "redis")]
use weir_remotes::AnyRemote;
use weir_store::{
    CounterSight, Decisions, EndedPlace, MemoryStore, PlaceRequest, ReturnedHits, Store, StoreError,
    Summaries, TakeOptions, TakenPlaces, Unreported, WaitRoom,
};

/// Any store: an `enum` instead of a trait object, so that a decision in memory allocates nothing.
pub enum AnyStore {
    /// Keeps all counters in this process's memory.
    Memory(MemoryStore),
    /// Keeps recent counters in memory, and all of them on this instance's disk.
    #[cfg(feature = "disk")]
    Disk(DiskStore),
    /// Keeps counters in memory, in front of a store that instances share.
    #[cfg(feature = "redis")]
    Coordinated(Coordinated<AnyRemote>),
}

macro_rules! with_any {
    ($any:expr, $store:ident => $act:expr) => {
        match $any {
            AnyStore::Memory($store) => $act,
            #[cfg(feature = "disk")]
            AnyStore::Disk($store) => $act,
            #[cfg(feature = "redis")]
            AnyStore::Coordinated($store) => $act,
        }
    };
}

// === impl AnyStore ===

impl AnyStore {
    /// Returns [`MemoryStore::sweep_steps`] of the counters that only this process uses.
    pub fn sweep_steps(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.sweep_steps(),
            #[cfg(feature = "disk")]
            Self::Disk(disk) => disk.memory().sweep_steps(),
            #[cfg(feature = "redis")]
            Self::Coordinated(coordinated) => coordinated.memory().sweep_steps(),
        }
    }

    /// Calls [`MemoryStore::sweep_step`] on the counters that only this process uses.
    pub fn sweep_step(&self, step: usize, now: Timestamp) {
        match self {
            Self::Memory(memory) => memory.sweep_step(step, now),
            #[cfg(feature = "disk")]
            Self::Disk(disk) => disk.memory().sweep_step(step, now),
            #[cfg(feature = "redis")]
            Self::Coordinated(coordinated) => coordinated.sweep_step(step, now),
        }
    }

    /// Flushes pending counts, and leaves the shared store or closes the data on disk, before this instance stops.
    #[cfg_attr(
        not(any(feature = "disk", feature = "redis")),
        expect(clippy::unused_async, reason = "memory has nothing to flush")
    )]
    pub async fn close(&self) {
        match self {
            Self::Memory(_) => {}
            #[cfg(feature = "disk")]
            Self::Disk(disk) => disk.close().await,
            #[cfg(feature = "redis")]
            Self::Coordinated(coordinated) => coordinated.close().await,
        }
    }
}

impl Store for AnyStore {
    fn clock_offset(&self) -> i64 {
        with_any!(self, store => store.clock_offset())
    }

    fn longest_wait(&self) -> Duration {
        with_any!(self, store => store.longest_wait())
    }

    fn shared_counts(&self) -> SharedCounts {
        with_any!(self, store => store.shared_counts())
    }

    fn memory(&self) -> Option<&MemoryStore> {
        with_any!(self, store => Store::memory(store))
    }

    fn lines_for(&self, check: &LimitCheck<'_>) -> Option<&MemoryStore> {
        with_any!(self, store => store.lines_for(check))
    }

    fn wait_room(&self) -> Option<&Arc<WaitRoom>> {
        with_any!(self, store => Store::wait_room(store))
    }

    fn instance_rank(&self, check: &LimitCheck<'_>) -> InstanceRank {
        with_any!(self, store => store.instance_rank(check))
    }

    fn estimate(&self, check: &LimitCheck<'_>, now: Timestamp) -> Option<Estimate> {
        with_any!(self, store => store.estimate(check, now))
    }

    async fn sight(&self, check: &LimitCheck<'_>, now: Timestamp) -> CounterSight {
        with_any!(self, store => store.sight(check, now).await)
    }

    fn alone(&self) -> Option<&MemoryStore> {
        with_any!(self, store => Store::alone(store))
    }

    async fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        with_any!(self, store => store.take_with(checks, scope, now, options).await)
    }

    async fn take_places(
        &self,
        places: &[PlaceRequest<'_>],
        serial: u64,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<TakenPlaces, StoreError> {
        with_any!(self, store => store.take_places(places, serial, now, options).await)
    }

    async fn end_places(&self, ended: &[EndedPlace<'_>], now: Timestamp) -> Result<ReturnedHits, StoreError> {
        with_any!(self, store => store.end_places(ended, now).await)
    }

    fn given_up(&self, check: &PlaceCheck<'_>, stats: &Arc<PlaceStats>, now: Timestamp) -> Vec<ReservedHits> {
        with_any!(self, store => store.given_up(check, stats, now))
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        with_any!(self, store => store.reserve(check, request, now).await)
    }

    async fn reserve_for_waiters(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        patience: Period,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        with_any!(self, store => store.reserve_for_waiters(check, request, patience, now).await)
    }

    async fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        with_any!(self, store => store.release(check, reservation, unused, now).await)
    }

    async fn clear(&self, check: &LimitCheck<'_>, now: Timestamp) -> Result<(), StoreError> {
        with_any!(self, store => store.clear(check, now).await)
    }

    async fn free_places(
        &self,
        check: &PlaceCheck<'_>,
        stats: &Arc<PlaceStats>,
        older_than: Period,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        with_any!(self, store => store.free_places(check, stats, older_than, now).await)
    }

    async fn announce(&self, note: &[u8]) -> Result<bool, StoreError> {
        with_any!(self, store => store.announce(note).await)
    }

    async fn announcements(&self) -> Vec<(Period, Vec<u8>)> {
        with_any!(self, store => store.announcements().await)
    }

    fn summarize(&self, summary: Vec<u8>) {
        with_any!(self, store => store.summarize(summary));
    }

    async fn summaries(&self) -> Result<Option<Summaries>, StoreError> {
        with_any!(self, store => store.summaries().await)
    }

    fn hold_nothing(&self, check: &LimitCheck<'_>, unreported: Unreported, now: Timestamp) {
        with_any!(self, store => store.hold_nothing(check, unreported, now));
    }

    fn forget(&self, check: &LimitCheck<'_>, now: Timestamp) {
        with_any!(self, store => store.forget(check, now));
    }

    async fn decide_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> Result<BucketReply, StoreError> {
        with_any!(self, store => store.decide_bucket(name, request, now).await)
    }

    async fn find_buckets(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        with_any!(self, store => store.find_buckets(name, deletes, now).await)
    }
}

impl Source for AnyStore {
    fn metrics(&self) -> Vec<Metric> {
        with_any!(self, store => store.metrics())
    }
}
