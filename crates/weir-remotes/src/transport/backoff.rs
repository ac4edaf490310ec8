use std::time::Duration;

/// The wait before connecting again. It doubles with each failure, less up to a quarter at random, to spread instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure; for Redis `REDIS_STARTUP_INITIAL_INTERVAL`.
    pub initial: Duration,
    /// The longest wait; for Redis `REDIS_STARTUP_MAX_INTERVAL`.
    pub max: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// `failures` in a row, at least one. `random` is a random number.
    pub(super) fn wait(self, failures: u32, random: u64) -> Duration {
        let doubled = self.initial.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let longest = doubled.min(self.max);
        // 16 bits spread instances well enough
        let share = u32::try_from(random & 0xffff).unwrap_or_default();
        longest.saturating_sub(longest / 4 * share / 0x1_0000)
    }
}

/// Short waits, because an attempt to connect costs little and every decision without the store is less exact.
impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(50), max: Duration::from_secs(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum() {
        let backoff = Backoff::default();
        assert_eq!(backoff.wait(1, 0), Duration::from_millis(50));
        assert_eq!(backoff.wait(3, 0), Duration::from_millis(200));
        assert_eq!(backoff.wait(u32::MAX, 0), Duration::from_secs(1));
        for random in [1, 0xffff, u64::MAX] {
            let wait = backoff.wait(9, random);
            assert!(wait > Duration::from_millis(749) && wait < Duration::from_secs(1), "{wait:?}");
        }
    }
}
