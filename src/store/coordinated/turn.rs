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
    /// The instant of the request, on this instance's clock.
    pub(super) now: Timestamp,
    /// When its waits end.
    pub(super) until: Instant,
    /// Whether that is before `WEIR_DECISION_BUDGET` ends because the caller waits no longer. That it runs out says
    /// nothing about the store then: callers who do not wait must not open the breaker for all others.
    pub(super) is_of_caller: bool,
    pub(super) record: Option<&'a DecisionRecord>,
}

// === impl Turn ===

impl<'a> Turn<'a> {
    /// Begins to decide a request of the instant `now`, whose caller waits for `wait` at most, and no longer than
    /// `budget`, which is `WEIR_DECISION_BUDGET`.
    pub(super) fn begin(
        now: Timestamp,
        budget: Period,
        wait: Option<Duration>,
        record: Option<&'a DecisionRecord>,
    ) -> Self {
        let budget = budget.into();
        let of_caller = wait.filter(|wait| *wait < budget);
        let until = Instant::now() + of_caller.unwrap_or(budget);
        Self { now, until, is_of_caller: of_caller.is_some(), record }
    }
}
