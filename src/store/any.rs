//! The store that the settings select.

use std::time::Duration;

use super::{
    Decisions, MemoryStore, NO_LINES, Store, StoreError, TakeOptions, any_remote::AnyRemote,
    coordinated::Coordinated, disk::DiskStore,
};
use crate::{
    limit::{
        Hits, LimitCheck, Period, Reservation, ReservationRequest, Scope, SharedCounts, Timestamp,
        request_bucket::{BucketName, BucketReply, BucketRequest},
    },
    observe::{Metric, Source},
};

/// Any store: an `enum` instead of a trait object, so that a decision in memory allocates nothing.
pub enum AnyStore {
    /// Keeps all counters in this process's memory.
    Memory(MemoryStore),
    /// Keeps recent counters in memory, and all of them on this instance's disk.
    Disk(DiskStore),
    /// Keeps counters in memory, in front of a store that instances share.
    Coordinated(Coordinated<AnyRemote>),
}

// === impl AnyStore ===

impl AnyStore {
    /// Returns [`MemoryStore::sweep_steps`] of the counters that only this process uses.
    #[must_use]
    pub fn sweep_steps(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.sweep_steps(),
            Self::Disk(disk) => disk.memory().sweep_steps(),
            Self::Coordinated(coordinated) => coordinated.memory().sweep_steps(),
        }
    }

    /// Calls [`MemoryStore::sweep_step`] on the counters that only this process uses.
    pub fn sweep_step(&self, step: usize, now: Timestamp) {
        match self {
            Self::Memory(memory) => memory.sweep_step(step, now),
            Self::Disk(disk) => disk.memory().sweep_step(step, now),
            Self::Coordinated(coordinated) => coordinated.memory().sweep_step(step, now),
        }
    }

    /// Flushes pending counts, and leaves the shared store or closes the data on disk, before this instance stops.
    pub async fn close(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Disk(disk) => disk.close().await,
            Self::Coordinated(coordinated) => coordinated.close().await,
        }
    }
}

impl Store for AnyStore {
    fn longest_wait(&self) -> Duration {
        match self {
            Self::Memory(memory) => memory.longest_wait(),
            Self::Disk(disk) => disk.longest_wait(),
            Self::Coordinated(coordinated) => coordinated.longest_wait(),
        }
    }

    fn shared_counts(&self) -> SharedCounts {
        match self {
            Self::Memory(_) | Self::Disk(_) => SharedCounts::default(),
            Self::Coordinated(coordinated) => coordinated.shared_counts(),
        }
    }

    fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Disk(_) => None,
            Self::Coordinated(coordinated) => Some(coordinated.memory()),
        }
    }

    fn lines_for(&self, check: &LimitCheck<'_>) -> Result<&MemoryStore, StoreError> {
        match self {
            Self::Memory(memory) => memory.lines_for(check),
            Self::Disk(_) => Err(NO_LINES),
            Self::Coordinated(coordinated) => coordinated.lines_for(check),
        }
    }

    fn alone(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Disk(_) | Self::Coordinated(_) => None,
        }
    }

    async fn take_with(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> Result<Decisions, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.decide(checks, scope, now)),
            Self::Disk(disk) => disk.take_with(checks, scope, now, options).await,
            Self::Coordinated(coordinated) => coordinated.take_with(checks, scope, now, options).await,
        }
    }

    async fn reserve(
        &self,
        check: &LimitCheck<'_>,
        request: ReservationRequest,
        now: Timestamp,
    ) -> Result<Reservation, StoreError> {
        match self {
            Self::Memory(memory) => memory.reserve(check, request, now).await,
            Self::Disk(disk) => disk.reserve(check, request, now).await,
            Self::Coordinated(coordinated) => coordinated.reserve(check, request, now).await,
        }
    }

    async fn release(
        &self,
        check: &LimitCheck<'_>,
        reservation: Reservation,
        unused: Hits,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(memory) => memory.release(check, reservation, unused, now).await,
            Self::Disk(disk) => disk.release(check, reservation, unused, now).await,
            Self::Coordinated(coordinated) => coordinated.release(check, reservation, unused, now).await,
        }
    }

    async fn decide_bucket(
        &self,
        name: &BucketName<'_>,
        request: &BucketRequest,
        now: Timestamp,
    ) -> Result<BucketReply, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.decide_bucket_now(name, request, now)),
            Self::Disk(disk) => disk.decide_bucket(name, request, now).await,
            Self::Coordinated(coordinated) => coordinated.decide_bucket(name, request, now).await,
        }
    }

    async fn find_buckets(
        &self,
        name: &BucketName<'_>,
        deletes: bool,
        now: Timestamp,
    ) -> Result<Option<Period>, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.find_buckets_now(name, deletes, now)),
            Self::Disk(disk) => disk.find_buckets(name, deletes, now).await,
            Self::Coordinated(coordinated) => coordinated.find_buckets(name, deletes, now).await,
        }
    }
}

impl Source for AnyStore {
    fn metrics(&self) -> Vec<Metric> {
        match self {
            Self::Memory(memory) => memory.metrics(),
            Self::Disk(disk) => disk.metrics(),
            Self::Coordinated(coordinated) => coordinated.metrics(),
        }
    }
}
