//! The store that the settings select.

use super::{Decisions, MemoryStore, Store, StoreError, any_remote::AnyRemote, coordinated::Coordinated};
use crate::{
    limit::{
        Hits, LimitCheck, Period, Reservation, ReservationRequest, Scope, Timestamp,
        request_bucket::{BucketName, BucketReply, BucketRequest},
    },
    observe::{DecisionRecord, Metric, Source},
};

/// Any store: an `enum` instead of a trait object, so that a decision in memory allocates nothing.
pub enum AnyStore {
    /// Keeps all counters in this process's memory.
    Memory(MemoryStore),
    /// Keeps counters in memory, in front of a store that instances share.
    Coordinated(Coordinated<AnyRemote>),
}

// === impl AnyStore ===

impl AnyStore {
    /// Returns the counters that only this process uses.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        match self {
            Self::Memory(memory) => memory,
            Self::Coordinated(coordinated) => coordinated.memory(),
        }
    }

    /// Flushes pending counts and leaves the shared store, before this instance stops.
    pub async fn close(&self) {
        if let Self::Coordinated(coordinated) = self {
            coordinated.close().await;
        }
    }
}

impl Store for AnyStore {
    async fn take(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
    ) -> Result<Decisions, StoreError> {
        self.take_recorded(checks, scope, now, None).await
    }

    async fn take_recorded(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
        record: Option<&DecisionRecord>,
    ) -> Result<Decisions, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.decide(checks, scope, now)),
            Self::Coordinated(coordinated) => coordinated.take_recorded(checks, scope, now, record).await,
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
            Self::Coordinated(coordinated) => coordinated.find_buckets(name, deletes, now).await,
        }
    }
}

impl Source for AnyStore {
    fn metrics(&self) -> Vec<Metric> {
        match self {
            Self::Memory(memory) => memory.metrics(),
            Self::Coordinated(coordinated) => coordinated.metrics(),
        }
    }
}
