//! The walk along a line after the limit fell: it tells everybody who cannot be served in time any more.

use std::task::Waker;

use super::{
    answer::{Answer, Place, Rejection},
    plan::{Plan, shifted},
    waiters::Waiters,
};
use crate::limit::units::Timestamp;

/// The waiters that one turn visits. A walk along a million of them takes milliseconds, for which nobody else would be
/// decided.
const STRIDE: usize = 1_024;

/// A walk along the line.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    /// The plan of the waiters before `next`.
    plan: Plan,
    next: Place,
}

// === impl Sweep ===

impl Sweep {
    /// Begins a walk, with the `plan` of an empty line.
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan, next: Place::default() }
    }

    /// Visits the next waiters. Those that cannot be served by their deadline are told, and take nothing of the plan.
    /// Returns the plan when the walk has reached the end. The clock of the plan is `ahead` by as many nanoseconds.
    pub(super) fn visit_some(
        &mut self,
        waiters: &mut Waiters,
        now: Timestamp,
        ahead: i64,
        woken: &mut Vec<Waker>,
    ) -> Option<Plan> {
        let now = shifted(now, ahead);
        for _ in 0..STRIDE {
            let Some(waiter) = waiters.first_from(self.next) else { return Some(self.plan.clone()) };
            self.next = Place(waiter.place.0 + 1);
            match self.plan.ready(now, waiter.hits) {
                Some(served) if served <= shifted(waiter.deadline, ahead) => {
                    self.plan.add(served, waiter.hits);
                }
                served => {
                    let rejection = served.map_or(Rejection::Never, |served| Rejection::Timeout {
                        retry_after: served.since(now),
                    });
                    waiters.answer(waiter.place, Answer::Rejected(rejection), woken);
                }
            }
        }
        None
    }
}
