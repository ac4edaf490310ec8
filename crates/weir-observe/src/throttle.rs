//! Bounds log messages that callers can cause.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const INTERVAL: Duration = Duration::from_secs(1);

/// Admits one message per second, or in another time, and counts the others.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<ThrottleState>);

#[derive(Debug, Default)]
struct ThrottleState {
    last: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    /// Returns whether to log a message at `now`: if so, the number of messages suppressed since the last one.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        self.admit_one_in(INTERVAL, now)
    }

    /// The same for one message in each `interval`.
    pub fn admit_one_in(&self, interval: Duration, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < interval) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_a_second_is_admitted_and_the_others_are_counted() {
        let throttle = Throttle::default();
        let begin = Instant::now();
        let at = |millis| throttle.admit(begin + Duration::from_millis(millis));
        assert_eq!((at(0), at(1), at(999)), (Some(0), None, None));
        assert_eq!((at(1_000), at(1_001)), (Some(2), None));
        assert_eq!((at(60_000), at(61_000)), (Some(1), Some(0)));
    }
}
