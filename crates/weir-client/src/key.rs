//! Entries whose rule and counter are found once.

use std::time::Duration;

use super::{
    error::AcquireError,
    limiter::{Inner, Limiter, reject_empty},
    permit::Permit,
};
use weir_limit::Hits;
use weir_limiter as limiter;

/// The entries of a limiter's caller, whose rule and counter are found once, and again after each reload.
#[derive(Debug)]
pub struct Key {
    limiter: Limiter,
    inner: limiter::Key,
}

impl Limiter {
    /// Takes `hits` if they fit now. While others wait, such callers get up to half of each period.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]; no hits were taken. [`AcquireError::MustAsk`] if the counters are not in this process.
    pub fn try_acquire(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        hits: Hits,
    ) -> Result<Permit, AcquireError> {
        self.key(domain, entries)?.try_acquire(hits)
    }

    /// Finds the rule and the counter of `entries` in `domain` once, for many calls. It follows reloads.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Invalid`], if the domain is empty, or there are no entries.
    pub fn key(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Key, AcquireError> {
        reject_empty(entries)?;
        let inner = self.inner.limiter.key(domain, entries);
        let inner = inner.map_err(|error| AcquireError::Invalid(error.into()))?;
        Ok(Key { limiter: self.clone(), inner })
    }
}

// === impl Key ===

impl Key {
    /// Takes `hits` as [`Limiter::try_acquire`] does.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]. No hits were taken.
    pub fn try_acquire(&self, hits: Hits) -> Result<Permit, AcquireError> {
        let Inner { limiter, clock, .. } = &*self.limiter.inner;
        self.limiter.permit(self.inner.domain(), limiter.try_acquire(&self.inner, hits, clock.now()))
    }

    /// Takes `hits` as [`Limiter::acquire`] does.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]. No hits were taken.
    pub async fn acquire(&self, hits: Hits, max_wait: Duration) -> Result<Permit, AcquireError> {
        let shared = &self.limiter.inner;
        if let Some(acquired) = shared.limiter.acquire_fitting(&self.inner, hits, shared.clock.now()) {
            return Ok(Permit::new(shared, self.inner.domain(), acquired));
        }
        self.limiter.acquire_request(&self.inner.request(hits), max_wait).await
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
