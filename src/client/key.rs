//! Entries whose rule and counter are found once.

use std::time::Duration;

use super::{AcquireError, Limiter, Permit};
use crate::{limit::Hits, limiter::Resolved};

/// The entries of a limiter's caller, whose rule and counter are found once, and again after each reload.
#[derive(Debug)]
pub struct Key {
    limiter: Limiter,
    resolved: Resolved,
}

// === impl Key ===

impl Key {
    pub(super) const fn new(limiter: Limiter, resolved: Resolved) -> Self {
        Self { limiter, resolved }
    }

    /// Takes `hits` as [`Limiter::try_acquire`] does.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]. No hits were taken.
    pub fn try_acquire(&self, hits: Hits) -> Result<Permit, AcquireError> {
        self.limiter.try_acquire_resolved(&self.resolved, hits)
    }

    /// Takes `hits` as [`Limiter::acquire`] does.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]. No hits were taken.
    pub async fn acquire(&self, hits: Hits, max_wait: Duration) -> Result<Permit, AcquireError> {
        self.limiter.acquire_request(&self.resolved.request(hits), max_wait).await
    }

    /// Takes one hit as [`Limiter::until_ready`] does.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]. No hit was taken.
    pub async fn until_ready(&self) -> Result<Permit, AcquireError> {
        self.acquire(Hits(1), Duration::MAX).await
    }
}
