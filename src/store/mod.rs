//! Where the counts live.
//!
//! A store runs the pure algorithms of [`limit`](crate::limit) atomically. It knows no protocol, and no protocol knows it.

#[cfg(feature = "server")]
mod any;
#[cfg(feature = "coordinated")]
pub mod coordinated;
mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "coordinated")]
pub mod remote;
#[cfg(feature = "server")]
pub mod simulated;

use std::future::Future;

use smallvec::SmallVec;

#[cfg(feature = "server")]
pub use any::AnyStore;
pub use memory::{MemoryStore, Usage};

use crate::limit::{Decision, LimitCheck, Scope, Timestamp};

/// The answers to the asks of one request, in their order.
pub type Decisions = SmallVec<[Decision; 2]>;

/// Counts hits against limits.
pub trait Store: Send + Sync + 'static {
    /// Decides about `asks`, the asks of one request, as of `now`, and counts them as `scope` says.
    ///
    /// The answer has one [`Decision`] for each ask. A store that has to give up says why; it may then have counted all the
    /// same.
    fn take(
        &self,
        checks: &[LimitCheck<'_>],
        scope: Scope,
        now: Timestamp,
    ) -> impl Future<Output = Result<Decisions, StoreError>> + Send;
}

/// Why a store gave up.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A store that counts over the network could not be asked.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}
