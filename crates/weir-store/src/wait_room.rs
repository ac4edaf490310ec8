//! The callers that wait in all lines of a process: their number, its bounds, and what became of them.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

use weir_limit::{
    CounterKey, Period, Timestamp,
    line::{Answer, QueuePosition, Rejection},
};
use weir_observe::Metric;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitBounds {
    pub per_key: usize,
    pub total: usize,
    /// Longer waits are cut to this.
    pub longest: Period,
}

/// The callers that wait, and those that may wait and did not have to.
#[derive(Debug, Default)]
pub struct WaitRoom {
    bounds: OnceLock<WaitBounds>,
    waiters: AtomicUsize,
    is_closed: AtomicBool,
    kept: AtomicU64,
    admitted: AtomicU64,
    timeouts: AtomicU64,
    too_many: AtomicU64,
    too_heavy: AtomicU64,
    closed: AtomicU64,
    left: AtomicU64,
}

#[derive(Debug)]
#[must_use = "a position that nobody polls or leaves stays taken"]
pub struct Ticket {
    pub key: CounterKey,
    pub position: QueuePosition,
}

/// Lines of callers, one for each key.
pub trait WaitingLines: Sync {
    /// Returns the answer to the caller at `ticket`, once; or has `waker` woken when there is one.
    fn poll_place(&self, ticket: &Ticket, waker: &Waker) -> Poll<Answer>;

    /// Gives the position of `ticket` up, and the hits that were taken for it meanwhile.
    fn leave(&self, ticket: Ticket, now: Timestamp);
}

// === impl WaitBounds ===

impl Default for WaitBounds {
    fn default() -> Self {
        Self { per_key: 100_000, total: 1_000_000, longest: Period::from_secs(60) }
    }
}

// === impl WaitRoom ===

impl WaitRoom {
    /// Sets the bounds, once, before anybody waits.
    pub fn set_bounds(&self, bounds: WaitBounds) {
        // whoever is second changes nothing
        let _ = self.bounds.set(bounds);
    }

    pub fn waiters(&self) -> usize {
        self.waiters.load(Ordering::Relaxed)
    }

    /// The longest that a caller may wait: at most `max_wait`, and no time once nobody may wait.
    pub fn longest(&self, max_wait: Period) -> Period {
        if self.is_closed() { Period::default() } else { self.cut(max_wait) }
    }

    /// `max_wait`, or less if the bounds allow less.
    pub fn cut(&self, max_wait: Period) -> Period {
        max_wait.min(self.bounds().longest)
    }

    pub fn has_room(&self, waiting: usize) -> bool {
        let bounds = self.bounds();
        waiting < bounds.per_key && self.waiters() < bounds.total
    }

    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub fn keep(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a caller that is rejected on arrival, and returns what it is told.
    pub fn reject(&self, rejection: Rejection) -> Rejection {
        let is_timeout = matches!(rejection, Rejection::Timeout { .. });
        let rejection = if is_timeout && self.is_closed() { Rejection::Closed } else { rejection };
        self.of(rejection).fetch_add(1, Ordering::Relaxed);
        rejection
    }

    pub fn answer(&self, answer: Answer) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        match answer {
            Answer::Admitted(_) => self.admitted.fetch_add(1, Ordering::Relaxed),
            Answer::Rejected(rejection) => self.of(rejection).fetch_add(1, Ordering::Relaxed),
            Answer::AskAgain => 0,
        };
    }

    pub fn leave(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let rejected = [
            ("timeout", &self.timeouts),
            ("full", &self.too_many),
            ("never", &self.too_heavy),
            ("closed", &self.closed),
        ];
        let rejected = rejected.into_iter().map(|(reason, count)| {
            let help = "Callers that may wait and were rejected, at once or later.";
            Metric::counter("weir.waits.rejected", help, count.load(Ordering::Relaxed))
                .label("reason", reason)
        });
        let counter =
            |name, help, count: &AtomicU64| Metric::counter(name, help, count.load(Ordering::Relaxed));
        let mut metrics = vec![
            Metric::gauge("weir.waiters", "Callers that wait now.", self.waiters() as u64),
            counter("weir.waits", "Callers that began to wait.", &self.kept),
            counter("weir.waits.admitted", "Callers that were admitted after a wait.", &self.admitted),
            counter("weir.waits.left", "Callers that left while they waited.", &self.left),
        ];
        metrics.extend(rejected);
        metrics
    }

    fn bounds(&self) -> &WaitBounds {
        self.bounds.get_or_init(WaitBounds::default)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    const fn of(&self, rejection: Rejection) -> &AtomicU64 {
        match rejection {
            Rejection::Timeout { .. } => &self.timeouts,
            Rejection::Full { .. } => &self.too_many,
            Rejection::Never => &self.too_heavy,
            Rejection::Closed => &self.closed,
        }
    }
}
