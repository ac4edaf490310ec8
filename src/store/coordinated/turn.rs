//! The longest that a decision waits for the shared store.

use std::time::Duration;

use tokio::time::Instant;

use crate::limit::Period;

/// The longest that a decision waits, and who says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) longest: Period,
    /// Whether it is less than `WEIR_DECISION_BUDGET` because the caller waits no longer. That it runs out says nothing
    /// about the store then: callers who do not wait must not open the breaker for all others.
    pub(super) is_of_caller: bool,
}

// === impl Budget ===

impl Budget {
    /// Returns the smaller of `own`, which is `WEIR_DECISION_BUDGET`, and what the caller allows.
    pub(super) fn of(own: Period, caller: Option<Duration>) -> Self {
        let caller = caller.map(|wait| Period::from_nanos(nanos(wait))).filter(|caller| *caller < own);
        Self { longest: caller.unwrap_or(own), is_of_caller: caller.is_some() }
    }

    /// Returns what is left for a decision that has `begun`.
    pub(super) fn rest(self, begun: Instant) -> Self {
        let rest = self.longest.as_nanos().saturating_sub(nanos(begun.elapsed()));
        Self { longest: Period::from_nanos(rest), ..self }
    }
}

/// Returns the instant at which a decision that begins now, and may take the time `budget`, ends.
pub(super) fn deadline(budget: Period) -> Instant {
    Instant::now() + budget.into()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
