//! The walk along a line after the limit fell: it tells everybody who cannot be served in time any more.

use std::task::Waker;

use super::{
    answer::{Answer, QueuePosition, Rejection},
    plan::LineForecast,
    waiters::Waiters,
};
use crate::units::Timestamp;

/// A walk along a million waiters takes milliseconds, in which nobody else would be decided.
const STRIDE: usize = 1_024;

#[derive(Clone, Debug)]
pub(super) struct Sweep {
    /// The plan of the waiters before `next`.
    plan: LineForecast,
    next: QueuePosition,
}

// === impl Sweep ===

impl Sweep {
    /// `plan` is that of an empty line.
    pub(super) fn new(plan: LineForecast) -> Self {
        Self { plan, next: QueuePosition::default() }
    }

    /// Tells waiters that cannot be served in time. Returns the plan at the end. `ahead` is in nanoseconds.
    pub(super) fn visit_some(
        &mut self,
        waiters: &mut Waiters,
        now: Timestamp,
        ahead: i64,
        woken: &mut Vec<Waker>,
    ) -> Option<LineForecast> {
        let now = now.shifted(ahead);
        for _ in 0..STRIDE {
            let Some(waiter) = waiters.first_from(self.next) else { return Some(self.plan.clone()) };
            self.next = QueuePosition(waiter.position.0 + 1);
            match self.plan.ready(now, waiter.hits) {
                Some(served) if served <= waiter.deadline.shifted(ahead) => {
                    self.plan.add(served, waiter.hits);
                }
                served => {
                    let rejection = Rejection::until(served, now);
                    waiters.answer(waiter.position, Answer::Rejected(rejection), woken);
                }
            }
        }
        None
    }
}
