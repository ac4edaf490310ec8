//! Deciding without the store: it did not answer within the budget, or is known not to answer.

use super::Inner;
use crate::{
    limit::{Ask, Direction, OnStoreFailure, Period, Taken, Timestamp},
    store::remote::Remote,
};

/// The wait that is told where everything is denied for want of the store, which nobody knows the end of.
const UNKNOWN_WAIT: Period = Period::from_secs(1);

impl<R: Remote> Inner<R> {
    /// Decides as `on_store_failure` has it. What is let through is counted, and told to the store when it is back.
    pub(super) fn decide_alone(&self, ask: &Ask<'_>, now: Timestamp) -> Taken {
        self.figures.fallback.add(1);
        let way = ask.rule.get().coordination.on_store_failure.unwrap_or(self.settings.on_store_failure);
        let instances = self.instances();
        self.with_cell(ask, now, |cell| match way {
            _ if ask.direction == Direction::GiveBack => {
                cell.count_alone(instances, Direction::GiveBack, ask.hits, now)
            }
            OnStoreFailure::Local => cell.count_alone(instances, Direction::Take, ask.hits, now),
            OnStoreFailure::Allow => cell.count_unasked(ask.hits, now),
            OnStoreFailure::Deny => Taken { over: true, remaining: 0, reset: UNKNOWN_WAIT, ..cell.look(now) },
        })
    }
}
