//! What was acquired.

use std::{fmt, sync::Arc, time::Duration};

use super::limiter::Inner;
use weir_limit::Hits;
use weir_limiter::Acquired;
use weir_store::Receipt;

/// Hits that were acquired, and the request in flight that began with them, if the rule limits these.
///
/// Dropping it keeps the hits taken, since most requests use them; [`Permit::give_back`] returns those that were not used.
/// A request in flight ends with its permit, on any thread, in a runtime or not. Over a shared store, the store hears of
/// it later.
pub struct Permit {
    inner: Arc<Inner>,
    waited: Duration,
    receipt: Option<Receipt>,
    running: Option<RunningRequest>,
}

struct RunningRequest {
    domain: Box<str>,
    name: Box<str>,
}

// === impl Permit ===

impl Permit {
    pub(super) fn new(inner: &Arc<Inner>, domain: &str, acquired: Acquired) -> Self {
        let running = acquired.name.map(|name| RunningRequest { domain: domain.into(), name });
        Self {
            running,
            inner: Arc::clone(inner),
            waited: acquired.waited.into(),
            receipt: acquired.receipt.filter(|receipt| receipt.is_returnable),
        }
    }

    /// Returns the time from the call to the admission.
    pub const fn waited(&self) -> Duration {
        self.waited
    }

    /// Ends the request, which has cost so much: tokens, or bytes. The cost counts for a rule with `reserve`, above the
    /// limit too. Does nothing for rules without `in_flight`.
    pub fn settle(mut self, cost: Hits) {
        self.end(Some(cost));
    }

    /// Ends the request, gives unused hits back, and serves whoever waits for them. A fixed window gets them only while it is open, a
    /// sliding window while they count. A bucket gets less by what has flowed in since, so nearly nothing with a burst
    /// of 1, and nothing after a reload of rules. Under `give_back: deny` the hits stay taken.
    pub fn give_back(mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.inner.limiter.give_back(receipt, self.inner.clock.now());
        }
    }

    fn end(&mut self, cost: Option<Hits>) {
        if let Some(RunningRequest { domain, name }) = self.running.take() {
            self.inner.limiter.end_soon(domain, name, cost, self.inner.clock.now());
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("waited", &self.waited).finish_non_exhaustive()
    }
}
