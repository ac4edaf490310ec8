//! The wait before the next attempt.

use std::time::Duration;

use super::settings::XdsBackoff;

impl XdsBackoff {
    /// After `failures` in a row, at least one. `first` is the wait after one failure, before jitter.
    pub(super) fn wait(&self, first: Duration, failures: u32) -> Duration {
        self.wait_with(first, failures, fastrand::f64())
    }

    fn wait_with(&self, first: Duration, failures: u32, random: f64) -> Duration {
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.max);
        doubled.mul_f64(1.0 + self.jitter * (2.0 * random - 1.0)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_and_spread() {
        let seconds = Duration::from_secs;
        let backoff = XdsBackoff { initial: seconds(10), max: Duration::from_mins(1), jitter: 0.5 };
        let exact = XdsBackoff { jitter: 0.0, ..backoff };
        for (failures, expected) in [(1, 10), (2, 20), (3, 40), (4, 60), (u32::MAX, 60)] {
            assert_eq!(exact.wait(seconds(10), failures), seconds(expected));
        }
        assert_eq!(backoff.wait_with(seconds(10), 1, 0.0), seconds(5));
        assert_eq!(backoff.wait_with(seconds(10), 1, 1.0), seconds(15));
        assert_eq!(backoff.wait_with(seconds(10), 9, 1.0), seconds(60));
        let waits: Vec<Duration> = (0..50).map(|_| backoff.wait(seconds(10), 1)).collect();
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
}
