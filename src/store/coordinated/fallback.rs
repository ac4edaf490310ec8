//! Deciding without the store: it did not answer within the budget, or is known not to answer.

use super::{
    Inner,
    counter::{negative, positive},
};
use crate::{
    limit::{Decision, Direction, LimitCheck, OnStoreFailure, Period, Timestamp},
    store::remote::Remote,
};

/// The wait that is told where everything is denied for want of the store, which nobody knows the end of.
const UNKNOWN_WAIT: Period = Period::from_secs(1);

/// Whether the store was told of a decision that it did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Certainly not.
    No,
    /// It may have been.
    Perhaps,
}

/// Why a decision was not made by the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undecided {
    pub(super) told: Told,
    /// The budget was used up. Otherwise the store could not be asked, or said no.
    pub(super) late: bool,
}

impl<R: Remote> Inner<R> {
    /// Decides as `on_store_failure` has it. What is let through is counted, and told to the store when it is back; unless it
    /// may have been told already, by a command that nobody knows the end of: no hit is ever counted twice.
    pub(super) fn decide_by_fallback(&self, check: &LimitCheck<'_>, told: Told, now: Timestamp) -> Decision {
        let decision = self.decide_unasked(check, now);
        if told == Told::No {
            return decision;
        }
        self.metrics.unknown.add(check.hits.0);
        if !decision.over || check.direction == Direction::GiveBack {
            let uncount = if check.direction == Direction::GiveBack { positive } else { negative };
            self.with_counter(check, now, |counter| counter.owe(uncount(check.hits.0), now));
        }
        decision
    }

    fn decide_unasked(&self, check: &LimitCheck<'_>, now: Timestamp) -> Decision {
        self.metrics.fallback.add(1);
        let coordination =
            check.rule.get().coordination.on_store_failure.unwrap_or(self.settings.on_store_failure);
        let instances = self.instances();
        self.with_counter(check, now, |counter| match coordination {
            _ if check.direction == Direction::GiveBack => {
                counter.count_without_store(instances, Direction::GiveBack, check.hits, now)
            }
            OnStoreFailure::Local => counter.count_without_store(instances, Direction::Take, check.hits, now),
            OnStoreFailure::Allow => counter.count_unasked(check.hits, now),
            OnStoreFailure::Deny => {
                Decision { over: true, remaining: 0, reset: UNKNOWN_WAIT, ..counter.look(now) }
            }
        })
    }
}
