//! A request whose decisions wait for the shared store.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    limit::{Period, Timestamp},
    observe::DecisionRecord,
};

/// A request that is being decided. All of its waits end together, however many there are.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    /// On this instance's clock.
    pub(super) now: Timestamp,
    pub(super) until: Instant,
    pub(super) record: Option<&'a DecisionRecord>,
}

// === impl Turn ===

impl<'a> Turn<'a> {
    /// Waits end after `wait`, or after `budget`, which is `WEIR_DECISION_BUDGET`, if that is shorter.
    pub(super) fn begin(
        now: Timestamp,
        budget: Period,
        wait: Option<Duration>,
        record: Option<&'a DecisionRecord>,
    ) -> Self {
        let budget = Duration::from(budget);
        Self { now, until: Instant::now() + wait.map_or(budget, |wait| wait.min(budget)), record }
    }
}
