//! Hits that were acquired.

use std::{fmt, sync::Arc, time::Duration};

use super::limiter::Inner;
use weir_limiter::Acquired;
use weir_store::Receipt;

/// Hits that were acquired. Dropping it keeps them taken, since most requests use them; [`Permit::give_back`] returns
/// those that were not used.
pub struct Permit {
    inner: Arc<Inner>,
    waited: Duration,
    receipt: Option<Receipt>,
}

// === impl Permit ===

impl Permit {
    pub(super) fn new(inner: &Arc<Inner>, acquired: Acquired) -> Self {
        Self {
            inner: Arc::clone(inner),
            waited: acquired.waited.into(),
            receipt: acquired.receipt.filter(|receipt| receipt.is_returnable),
        }
    }

    /// Returns the time from the call to the admission.
    pub const fn waited(&self) -> Duration {
        self.waited
    }

    /// Gives unused hits back, and serves whoever waits for them. A fixed window gets them only while it is open, a
    /// sliding window while they count. A bucket gets less by what has flowed in since, so nearly nothing with a burst
    /// of 1, and nothing after a reload of rules. Under `give_back: deny` the hits stay taken.
    pub fn give_back(self) {
        if let Some(receipt) = self.receipt {
            self.inner.limiter.give_back(receipt, self.inner.clock.now());
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("waited", &self.waited).finish_non_exhaustive()
    }
}
