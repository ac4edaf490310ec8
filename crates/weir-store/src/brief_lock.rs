//! Locks that are held for less time than a thread takes to sleep and to wake up.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

/// Before a thread sleeps. Otherwise two threads that decide about one key wake each other, and decide half as often.
const LOOKS: u32 = 3;

/// Before the first look; each later one is four times as long. A time, since the processor's pause takes 10 to 50 ns.
const PAUSE: Duration = Duration::from_nanos(500);

/// For a thread that has met a taken lock shortly before. Taking a lock moves the counter's cache lines between
/// threads, which costs as much as some decisions: so a thread makes many of them between two looks of the other.
const LONG_PAUSE: Duration = Duration::from_micros(12);

/// A thread that decides about little else than one key meets a taken lock again within this time.
const SHORTLY: Duration = Duration::from_micros(40);

thread_local! {
    static WAITED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Locks `mutex`, which everybody holds for the time of a decision or little more.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call costs as much as what it does")]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
