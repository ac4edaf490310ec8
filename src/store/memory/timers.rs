//! The timers of all lines: one for each key that callers wait for.

use std::{collections::BTreeSet, time::Duration};

use parking_lot::{Condvar, Mutex};

use crate::{
    clock::Clock,
    limit::{CounterKey, Timestamp},
};

/// The longest sleep: a wall clock that is set forward must not keep callers waiting for longer.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The timers of the lines of a store, earliest first, and the thread that sleeps until the next one.
#[derive(Debug, Default)]
pub struct Timers {
    state: Mutex<State>,
    /// Notified when the thread sleeps for too long.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: BTreeSet<(Timestamp, CounterKey)>,
    /// The instant until which the thread sleeps. None while it is awake.
    sleeps_until: Option<Timestamp>,
    /// Whether it must look after something else than timers.
    is_rung: bool,
    is_closed: bool,
}

// === impl Timers ===

impl Timers {
    /// Calls `serve` whenever a timer is due or the [bell rings](Timers::ring), until [`Timers::close`]. For a thread of its own.
    pub fn run(&self, clock: &(impl Clock + ?Sized), mut serve: impl FnMut(Timestamp)) {
        while self.wait(clock) {
            serve(clock.now());
        }
    }

    /// Has the thread serve at once.
    pub fn ring(&self) {
        self.state.lock().is_rung = true;
        self.changed.notify_one();
    }

    /// Ends [`Timers::run`].
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits until a timer is due. Returns false once closed.
    fn wait(&self, clock: &(impl Clock + ?Sized)) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return false;
            }
            if std::mem::take(&mut state.is_rung) {
                return true;
            }
            let Some((next, _)) = state.queue.first().copied() else {
                state.sleeps_until = Some(Timestamp::from_nanos(u64::MAX));
                self.changed.wait(&mut state);
                state.sleeps_until = None;
                continue;
            };
            let left = Duration::from(next.since(clock.now()));
            if left == Duration::ZERO {
                return true;
            }
            state.sleeps_until = Some(next);
            self.changed.wait_for(&mut state, left.min(LONGEST_SLEEP));
            state.sleeps_until = None;
        }
    }

    /// Returns the key of a timer that is due at `now`.
    pub(super) fn due(&self, now: Timestamp) -> Option<(Timestamp, CounterKey)> {
        self.state.lock().queue.first().copied().filter(|(instant, _)| *instant <= now)
    }

    /// Returns the instant of the next timer.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.state.lock().queue.first().map(|(instant, _)| *instant)
    }

    /// Replaces the timer of `key`.
    pub(super) fn set(&self, key: CounterKey, before: Option<Timestamp>, after: Option<Timestamp>) {
        let mut state = self.state.lock();
        if let Some(before) = before {
            state.queue.remove(&(before, key));
        }
        if let Some(after) = after {
            state.queue.insert((after, key));
            if state.sleeps_until.is_some_and(|until| after < until) {
                self.changed.notify_one();
            }
        }
    }
}
