//! Resets: the store's counters are cleared by one instance, while the others hold nothing that they could report later.
//!
//! The instance that resets announces it. Whoever hears that asks the store for every decision until it forgets what it
//! knows, a moment after the counters were cleared. `weir-limiter/reset.rs` has the times.

use std::time::Duration;

use tokio::time::Instant;

use super::{Coordinated, counter::TryKind, modes::NO_REPLY};
use weir_limit::{LimitCheck, Scope, Timestamp};
use weir_store::{StoreError, Unreported, all_given_back, remote::Remote};

/// How long a person waits for the store, before the other instances forget what they know.
const CLEARED_WITHIN: Duration = Duration::from_millis(300);

impl<R: Remote> Coordinated<R> {
    /// Clears the counters of `check` in the store. Its hits are all that they may have.
    pub(super) async fn clear_shared(&self, check: &LimitCheck<'_>) -> Result<(), StoreError> {
        let until = Instant::now() + Duration::from(self.client.settings.budget).max(CLEARED_WITHIN);
        let asked = self.ask(check, TryKind::GiveBack(self.client.time().now), until).await;
        asked.map(drop).map_err(|_| StoreError::Unavailable(NO_REPLY.into()))
    }

    /// What is held and not used goes back.
    pub(super) fn hold_none(&self, check: &LimitCheck<'_>, unreported: Unreported, now: Timestamp) {
        let now = self.client.time_at(now).now;
        if self.client.requested_mode(check).is_coordinated() {
            self.table.begin_reset(check, unreported, now);
        }
    }

    pub(super) fn forget_shared(&self, check: &LimitCheck<'_>, now: Timestamp) {
        let time = self.client.time_at(now);
        if self.pool_member(check).is_some() {
            // what is given back to a pool is with the instance that resets
        } else if self.client.requested_mode(check).is_coordinated() {
            self.table.end_reset(check, time.now);
        } else {
            self.own.decide(&[&all_given_back(check)], Scope::Descriptor, now, None);
        }
    }
}
