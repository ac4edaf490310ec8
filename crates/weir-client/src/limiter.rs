//! A limiter in this process, whose callers can wait.

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "dns")]
use super::rules::FollowedRules;
#[cfg(not(feature = "dns"))]
use super::rules::Rules;
use super::{error::AcquireError, permit::Permit, rules::RuleFiles, selected_store::AnyStore};
#[cfg(feature = "redis")]
use crate::store_thread::StoreThread;
use weir_config::ConfigErrors;
use weir_limit::{Descriptor, Domain, Entry, Hits, Period, Request};
use weir_limiter::{self as limiter, Acquired, waiter_thread::WaiterThread};
use weir_store::clock::Clock;

/// A limiter in this process, whose callers can wait. Clones share it.
///
/// Counters are in this process's memory, unless the builder says otherwise. Callers of one key are served in the order
/// of their arrival, and nobody overtakes. In memory, those of [`Limiter::try_acquire`], which do not wait, get up to
/// half of each period while others wait.
#[derive(Clone)]
pub struct Limiter {
    pub(super) inner: Arc<Inner>,
}

/// What all clones of a limiter share.
pub(super) struct Inner {
    pub(super) limiter: Arc<limiter::Limiter<AnyStore>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) files: RuleFiles,
    #[cfg(feature = "dns")]
    pub(super) rules: FollowedRules,
    #[cfg(not(feature = "dns"))]
    pub(super) rules: Rules,
    /// The thread ends with the last clone, like `_store_thread`.
    pub(super) _waiters: WaiterThread,
    #[cfg(feature = "redis")]
    pub(super) _store_thread: Option<StoreThread>,
}

// === impl Limiter ===

impl Limiter {
    /// Takes `hits` when they fit the limit for `entries` in `domain`, in the order of arrival; at once without a
    /// limit. A call that cannot be served within `max_wait` is rejected at once; nobody knows that of a limit on requests
    /// in flight, which [`Permit`]s end. Dropping the future gives its place in line up.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]. No hits were taken.
    pub async fn acquire(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        hits: Hits,
        max_wait: Duration,
    ) -> Result<Permit, AcquireError> {
        reject_empty(entries)?;
        let entries = entries.iter().map(|(key, value)| Entry { key, value });
        let descriptor =
            Descriptor { entries: entries.collect(), hits: Some(hits.0), ..Descriptor::default() };
        let request = Request { domain, descriptors: std::iter::once(descriptor).collect(), hits: 0 };
        self.acquire_request(&request, max_wait).await
    }

    /// Takes one hit when it fits, within the longest wait of this limiter.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]. No hit was taken.
    pub async fn until_ready(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Permit, AcquireError> {
        self.acquire(domain, entries, Hits(1), Duration::MAX).await
    }

    /// Reads the rules of its directory again. Callers that wait stay in line; those that cannot be served in time any
    /// more are told at once. If rules are invalid, the previous ones stay. Rules with `instances: dns://…` whose name
    /// is new come into force once it was looked up, within 2 s.
    ///
    /// # Errors
    ///
    /// All errors of all files.
    pub fn reload(&self) -> Result<(), ConfigErrors> {
        self.inner.load(self.inner.files.read()?);
        Ok(())
    }

    /// Replaces all rules by `domains`, as [`Limiter::reload`] does; the last of several with one name counts. Without
    /// the feature `dns`, an instance has a hundredth of limits that are divided by the addresses of a name.
    pub fn load(&self, domains: &[Domain]) {
        self.inner.load(domains.to_vec());
    }

    /// Rejects all callers that wait, and from now on those that would have to, with [`AcquireError::Closed`].
    pub fn close(&self) {
        self.inner.limiter.close_waiters(self.inner.clock.now());
    }

    /// Closes the limiter, reports its counts to a shared store or the disk, and leaves it. For the end of a program.
    pub async fn shut_down(&self) {
        self.close();
        self.inner.limiter.store().close().await;
    }

    /// Returns the number of callers that wait.
    pub fn waiters(&self) -> usize {
        self.inner.limiter.waiters()
    }

    pub(super) async fn acquire_request(
        &self,
        request: &Request<'_>,
        max_wait: Duration,
    ) -> Result<Permit, AcquireError> {
        let max_wait = Period::from_nanos(u64::try_from(max_wait.as_nanos()).unwrap_or(u64::MAX));
        let inner = &self.inner;
        let acquired =
            inner.limiter.acquire(request, max_wait, &*inner.clock, |_, acquired| acquired.clone());
        self.permit(request.domain, acquired.await)
    }

    pub(super) fn permit(
        &self,
        domain: &str,
        acquired: Result<Acquired, limiter::AcquireError>,
    ) -> Result<Permit, AcquireError> {
        let acquired = acquired.map_err(|error| match error {
            limiter::AcquireError::MustAsk => AcquireError::MustAsk,
            error => AcquireError::Invalid(error),
        })?;
        match acquired.rejection {
            Some(rejection) => Err(rejection.into()),
            None => Ok(Permit::new(&self.inner, domain, acquired)),
        }
    }
}

// === impl Inner ===

impl Inner {
    pub(super) fn load(&self, domains: Vec<Domain>) {
        #[cfg(feature = "dns")]
        self.rules.load(domains);
        #[cfg(not(feature = "dns"))]
        self.rules.load(domains, |_| weir_limit::part::UNKNOWN_INSTANCES);
    }
}

pub(super) fn reject_empty(entries: &[(&str, &str)]) -> Result<(), AcquireError> {
    if entries.is_empty() { Err(AcquireError::Invalid(limiter::AcquireError::NoEntries)) } else { Ok(()) }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("waiters", &self.waiters()).finish_non_exhaustive()
    }
}
