//! Waiting for something to be so, and not a moment longer.

use std::{
    thread,
    time::{Duration, Instant},
};

use weir::clock::{Clock as _, SystemClock};

/// Long enough for a busy machine; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(10);
/// More than the requests of any test take.
const MARGIN_SECS: u64 = 30;

pub(crate) const HOUR: u64 = 60 * 60;
pub(crate) const DAY: u64 = 24 * HOUR;

/// LimitChecks `look` until it finds something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not so after {PATIENCE:?}");
        thread::sleep(PAUSE);
    }
}

/// Waits until no window of so many seconds ends soon, if one does.
pub(crate) fn away_from_the_end_of(window_secs: u64) {
    until("the next window", || (secs_left_of(window_secs) > MARGIN_SECS).then_some(()));
}

/// The whole seconds, begun ones included, until the present window of so many seconds ends.
pub(crate) fn secs_left_of(window_secs: u64) -> u64 {
    let now_secs = SystemClock.now().as_nanos() / weir::limit::NANOS_PER_SECOND;
    window_secs - now_secs % window_secs
}
