//! Polling until a condition holds.

use std::{
    thread,
    time::{Duration, Instant},
};

use weir_store::clock::{Clock as _, SystemClock};

/// How long to poll, which is enough for a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(10);
/// Longer than the requests of any test take.
const MARGIN_SECS: u64 = 30;

pub(crate) const HOUR: u64 = 60 * 60;
pub(crate) const DAY: u64 = 24 * HOUR;

/// Calls `poll` until it returns a value, and returns that.
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        thread::sleep(PAUSE);
    }
}

/// Waits for the next window of `window_secs` seconds if the current one ends soon.
pub(crate) fn away_from_the_end_of(window_secs: u64) {
    until("the next window", || (secs_left_of(window_secs) > MARGIN_SECS).then_some(()));
}

/// Returns the seconds until the current window of `window_secs` seconds ends, rounded up.
pub(crate) fn secs_left_of(window_secs: u64) -> u64 {
    let now_secs = SystemClock.now().as_nanos() / weir_limit::NANOS_PER_SECOND;
    window_secs - now_secs % window_secs
}
