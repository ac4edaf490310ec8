//! Locks that are held for less time than a thread takes to sleep and to wake up.

use parking_lot::{Mutex, MutexGuard};

/// How often a thread looks whether a lock is free before it sleeps: for about a microsecond. Two threads that decide
/// about one key would otherwise sleep and wake each other, and decide half as often as one alone.
const LOOKS: usize = 64;

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
    for _ in 0..LOOKS {
        std::hint::spin_loop();
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
    }
    mutex.lock()
}
