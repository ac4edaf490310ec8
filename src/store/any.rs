//! The store that the settings ask for.

use super::{Decisions, MemoryStore, Store, StoreError, coordinated::Coordinated, redis::RedisRemote};
use crate::{
    limit::{Hits, LimitCheck, Reservation, ReservationRequest, Scope, Timestamp},
    observe::{Metric, Source},
};

/// One of the stores that there are: an `enum` and no trait object, so that a decision in memory allocates nothing.
pub enum AnyStore {
    /// Everything in this process's memory.
    Memory(MemoryStore),
    /// Memory in front of a Redis that instances share.
    Coordinated(Coordinated<RedisRemote>),
}

// === impl AnyStore ===

impl AnyStore {
    /// The counters that are this process's alone.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        match self {
            Self::Memory(memory) => memory,
            Self::Coordinated(coordinated) => coordinated.memory(),
        }
    }

    /// Tells others what they have to know before this instance ends.
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
        match self {
            Self::Memory(memory) => Ok(memory.decide(checks, scope, now)),
            Self::Coordinated(coordinated) => coordinated.take(checks, scope, now).await,
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
}

impl Source for AnyStore {
    fn metrics(&self) -> Vec<Metric> {
        match self {
            Self::Memory(memory) => memory.metrics(),
            Self::Coordinated(coordinated) => coordinated.metrics(),
        }
    }
}
