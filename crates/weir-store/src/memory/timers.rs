//! The timers of all lines: one for each key that callers wait for.

use std::{
    collections::BTreeSet,
    thread::{self, Thread},
    time::Duration,
};

use parking_lot::Mutex;

use crate::clock::Clock;
use weir_limit::{CounterKey, Timestamp};

/// The longest sleep: a wall clock that is set forward must not keep callers waiting for longer.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The timers of the lines of a store, earliest first, and the thread that sleeps until the next one.
#[derive(Debug, Default)]
pub struct Timers {
    state: Mutex<TimerState>,
}

#[derive(Debug, Default)]
struct TimerState {
    queue: BTreeSet<(Timestamp, CounterKey)>,
    /// The thread, and the instant until which it sleeps. None while it is awake.
    sleeper: Option<(Thread, Timestamp)>,
    is_rung: bool,
    is_closed: bool,
}

// === impl Timers ===

impl Timers {
    /// Calls `serve` when a timer is due or on [`Timers::ring`], until [`Timers::close`]. Needs a thread of its own.
    pub fn run(&self, clock: &(impl Clock + ?Sized), mut serve: impl FnMut(Timestamp)) {
        while self.wait(clock) {
            serve(clock.now());
        }
    }

    /// Has the thread serve at once.
    pub fn ring(&self) {
        let mut state = self.state.lock();
        state.is_rung = true;
        state.wake();
    }

    /// Ends [`Timers::run`].
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.wake();
    }

    fn wait(&self, clock: &(impl Clock + ?Sized)) -> bool {
        loop {
            let sleep = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return false;
                }
                if std::mem::take(&mut state.is_rung) {
                    return true;
                }
                let next = state.queue.first().map(|(instant, _)| *instant);
                let sleep = next.map(|next| Duration::from(next.since(clock.now())));
                if sleep == Some(Duration::ZERO) {
                    return true;
                }
                let until = next.unwrap_or(Timestamp::from_nanos(u64::MAX));
                state.sleeper = Some((thread::current(), until));
                sleep
            };
            // a wake-up that comes before this ends it at once
            match sleep {
                Some(sleep) => thread::park_timeout(sleep.min(LONGEST_SLEEP)),
                None => thread::park(),
            }
            self.state.lock().sleeper = None;
        }
    }

    pub(super) fn due(&self, now: Timestamp) -> Option<(Timestamp, CounterKey)> {
        self.state.lock().queue.first().copied().filter(|(instant, _)| *instant <= now)
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        self.state.lock().queue.first().map(|(instant, _)| *instant)
    }

    pub(super) fn set(&self, key: CounterKey, before: Option<Timestamp>, after: Option<Timestamp>) {
        let mut state = self.state.lock();
        if let Some(before) = before {
            state.queue.remove(&(before, key));
        }
        if let Some(after) = after {
            state.queue.insert((after, key));
            if state.sleeper.as_ref().is_some_and(|(_, until)| after < *until) {
                state.wake();
            }
        }
    }
}

// === impl TimerState ===

impl TimerState {
    fn wake(&mut self) {
        if let Some((sleeper, _)) = self.sleeper.take() {
            sleeper.unpark();
        }
    }
}
