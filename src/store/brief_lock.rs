//! Locks that are held for less time than a thread takes to sleep and to wake up.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// How often a thread looks whether a lock is free before it sleeps. Two threads that decide about one key would
/// otherwise sleep and wake each other, and decide half as often as one alone.
const LOOKS: u32 = 3;

/// The pause before the first look; each later one is twice as long. Whoever takes the lock takes the cache lines of
/// the counter from the other thread, which costs as much as some decisions. So the other one makes many of them in a
/// row between two looks, as a thread alone does. A time rather than a number of turns, since the processor's pause
/// takes from 10 to 50 ns.
const PAUSE: Duration = Duration::from_micros(6);

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
    for look in 0..LOOKS {
        let until = Instant::now() + PAUSE * (1 << look);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
    }
    mutex.lock()
}
