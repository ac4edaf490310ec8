//! Locks that are held for less time than a thread takes to sleep and to wake up.

use parking_lot::{Mutex, MutexGuard};

/// How often a thread looks whether a lock is free before it sleeps: for some microseconds. Two threads that decide
/// about one key would otherwise sleep and wake each other, and decide half as often as one alone.
const LOOKS: u32 = 4;

/// The pauses before the first look; each later one waits for twice as long. Whoever looks takes the cache line of the
/// lock from the thread that holds it, so the holder makes several decisions in a row between two looks, as one thread
/// alone does.
const PAUSES: u32 = 64;

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
        for _ in 0..PAUSES << look {
            std::hint::spin_loop();
        }
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
    }
    mutex.lock()
}
