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
    /// What of `check` is counted in counters of the store: all of it, or the tiers beside a pool. None if that is nothing.
    fn of_store<'a>(&self, check: &'a LimitCheck<'_>) -> Option<LimitCheck<'a>> {
        if !self.client.requested_mode(check).is_coordinated() {
            None
        } else if check.pool.is_some() {
            check.of_own_tiers(check.hits)
        } else {
            Some(check.copied())
        }
    }

    /// Clears the counters of `all`, whose hits are all that they may have.
    pub(super) async fn clear_all(&self, all: &LimitCheck<'_>, now: Timestamp) -> Result<(), StoreError> {
        if let Some(counted) = self.of_store(all) {
            let until = Instant::now() + Duration::from(self.client.settings.budget).max(CLEARED_WITHIN);
            let asked = self.ask(&counted, TryKind::GiveBack(self.client.time().now), until).await;
            asked.map_err(|_| StoreError::Unavailable(NO_REPLY.into()))?;
        }
        if let Some(member) = self.pool_member(all) {
            self.give_back_to_pool(&member, all, now);
        } else {
            self.clear_own(all, now);
        }
        Ok(())
    }

    /// What is held and not used goes back.
    pub(super) fn hold_none(&self, check: &LimitCheck<'_>, unreported: Unreported, now: Timestamp) {
        if let Some(counted) = self.of_store(check) {
            self.table.begin_reset(&counted, unreported, self.client.time_at(now).now);
        }
    }

    /// What was given back to a pool is with the instance that resets.
    pub(super) fn forget_shared(&self, check: &LimitCheck<'_>, now: Timestamp) {
        if let Some(counted) = self.of_store(check) {
            self.table.end_reset(&counted, self.client.time_at(now).now);
        }
        self.clear_own(&all_given_back(check), now);
    }

    /// What this instance counts by itself.
    fn clear_own(&self, all: &LimitCheck<'_>, now: Timestamp) {
        if !self.client.requested_mode(all).is_coordinated() {
            self.own.decide(&[all], Scope::Descriptor, now, None);
        }
    }
}
