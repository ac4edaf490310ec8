//! Locks that are held for less time than a thread takes to sleep and to wake up.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

/// How often a thread looks whether a lock is free before it sleeps. Two threads that decide about one key would
/// otherwise sleep and wake each other, and decide half as often as one alone.
const LOOKS: u32 = 3;

/// The pause before the first look of a thread that meets a taken lock now and then; each later one is four times as
/// long. A time rather than a number of turns, since the processor's pause takes from 10 to 50 ns.
const PAUSE: Duration = Duration::from_nanos(500);

/// The same for a thread that has met one shortly before. Whoever takes the lock takes the cache lines of the counter
/// from the other thread, which costs as much as some decisions. So the other one makes many of them in a row between
/// two looks, as a thread alone does.
const LONG_PAUSE: Duration = Duration::from_micros(12);

/// The time within which a thread meets another taken lock if it decides about little else than one key.
const SHORTLY: Duration = Duration::from_micros(40);

thread_local! {
    /// When this thread has last had to wait.
    static WAITED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Locks `mutex`, which everybody holds for the time of a decision or little more.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Some(guard) => guard,
        None => lock_contended(mutex),
    }
}

#[cold]
fn lock_contended<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let now = Instant::now();
    let is_busy = WAITED_AT.get().is_some_and(|at| now.duration_since(at) < SHORTLY);
    let mut pause = if is_busy { LONG_PAUSE } else { PAUSE };
    let mut guard = None;
    for _ in 0..LOOKS {
        wait(pause);
        guard = mutex.try_lock();
        if guard.is_some() {
            break;
        }
        pause *= 4;
    }
    let guard = guard.unwrap_or_else(|| mutex.lock());
    WAITED_AT.set(Some(Instant::now()));
    guard
}

fn wait(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        // where two threads share a core, reading the clock slows the other one down
        for _ in 0..16 {
            std::hint::spin_loop();
        }
    }
}
