//! Waits for conditions.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::time;

/// The longest time that a test waits for anything: sentinels that the machine has held up do nothing for 30 s.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// Waits until `done` returns true; panics at the [`DEADLINE`].
pub async fn until(what: &str, done: impl AsyncFnMut() -> bool) {
    within(DEADLINE, what, done).await;
}

/// Like [`until`], for tests without tasks.
pub fn until_blocking(what: &str, mut done: impl FnMut() -> bool) {
    let late = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < late, "not in time: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until `done` returns true; panics after the time `longest`.
pub async fn within(longest: Duration, what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(time::timeout(longest, waiting).await.is_ok(), "not in time: {what}");
}
