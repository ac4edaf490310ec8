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
/// it later. What it has reserved counts as its cost then, unless [`Permit::settle`] says another one.
pub struct Permit {
    inner: Arc<Inner>,
    waited: Duration,
    receipt: Option<Receipt>,
    running: Option<RunningRequest>,
}

struct RunningRequest {
    domain: Box<str>,
    name: Box<str>,
    reserved: Hits,
}

// === impl Permit ===

impl Permit {
    pub(super) fn new(inner: &Arc<Inner>, domain: &str, acquired: Acquired) -> Self {
        let reserved = acquired.reserved;
        let running = acquired.name.map(|name| RunningRequest { domain: domain.into(), name, reserved });
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
    /// limit too; rules without `reserve` count none.
    pub fn settle(mut self, cost: Hits) {
        self.end(|_| Some(cost));
    }

    /// Ends the request without a cost, gives unused hits back, and serves whoever waits for them. A fixed window gets them only while it is open, a
    /// sliding window while they count. A bucket gets less by what has flowed in since, so nearly nothing with a burst
    /// of 1, and nothing after a reload of rules. Under `give_back: deny` the hits stay taken.
    pub fn give_back(mut self) {
        self.end(|_| None);
        if let Some(receipt) = self.receipt.take() {
            self.inner.limiter.give_back(receipt, self.inner.clock.now());
        }
    }

    /// `cost` gets what was reserved.
    fn end(&mut self, cost: impl FnOnce(Hits) -> Option<Hits>) {
        if let Some(RunningRequest { domain, name, reserved }) = self.running.take() {
            drop(self.inner.limiter.end_request(domain, name, cost(reserved), self.inner.clock.now()));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end(|reserved| Some(reserved).filter(|reserved| *reserved > Hits(0)));
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("waited", &self.waited).finish_non_exhaustive()
    }
}
