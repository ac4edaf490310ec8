//! Limits that are used up. Held hits that no request can use any more go back to the store.
//!
//! Where rejected hits count, as in envoyproxy/ratelimit, others read the store's count: it is the number of all hits
//! within a second of the last one. So what is held there is given back as soon as it is of no use, and nothing is held
//! by an instance that is not alone and has no requests, since it does not hear that others use the limit up.

use super::{LocalCounter, tiers::flows};
use crate::limit::Timestamp;

impl LocalCounter {
    /// Makes the leases of fixed windows pending, to return them to the store, if not a single hit fits until they end.
    pub(super) fn return_useless(&mut self, now: Timestamp) {
        if !self.leases().is_empty() && !flows(&self.target.tiers) && self.remaining(now) == 0 {
            self.return_leases();
        }
    }

    /// Returns whether the store has to learn soon that the limit is used up: the last reply did not say so, or what is
    /// returned is not in it.
    pub(super) fn is_newly_used_up(&self, now: Timestamp) -> bool {
        let Some(last) = self.unacknowledged.pending().last() else { return false };
        (last.unused > 0 || (last.rejected > 0 && self.plan.remaining_at_reply > 0))
            && self.remaining(now) == 0
    }
}
