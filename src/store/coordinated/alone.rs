//! Deciding without the store: it did not answer within the budget, or is known not to answer.

use super::{
    Inner,
    cell::{negative, positive},
};
use crate::{
    limit::{Ask, Direction, OnStoreFailure, Period, Taken, Timestamp},
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
    pub(super) fn decide_alone(&self, ask: &Ask<'_>, told: Told, now: Timestamp) -> Taken {
        let taken = self.decide_unasked(ask, now);
        if told == Told::No {
            return taken;
        }
        self.figures.unknown.add(ask.hits.0);
        if !taken.over || ask.direction == Direction::GiveBack {
            let uncount = if ask.direction == Direction::GiveBack { positive } else { negative };
            self.with_cell(ask, now, |cell| cell.owe(uncount(ask.hits.0), now));
        }
        taken
    }

    fn decide_unasked(&self, ask: &Ask<'_>, now: Timestamp) -> Taken {
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
