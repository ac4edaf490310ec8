//! How often the slots of a cluster are looked up.

use std::time::{Duration, Instant};

/// Between two look-ups while every server is connected, and at most between two of seeds.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest interval, and the first one while the map is unknown or a server is not connected.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The longest interval in that state, since a replica may take over at any time.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Known servers are asked on their connections, which costs little. A seed costs a connection each time, so the
/// intervals between questions to seeds grow while nothing changes.
pub(super) struct LookUpPace {
    was_healthy: bool,
    retry: Duration,
    /// The next interval between two questions to the seeds.
    seeds: Duration,
    /// When the seeds may be asked next, if the last look-up wanted to.
    seeds_due: Option<Instant>,
    /// When the seeds were asked, and the interval after that.
    seeds_asked: Option<(Instant, Duration)>,
}

// === impl LookUpPace ===

impl LookUpPace {
    /// For a look-up that needs the seeds. If this returns true, they count as asked.
    pub(super) fn may_ask_seeds(&mut self, now: Instant) -> bool {
        let due = self.seeds_asked.map_or(now, |(asked, interval)| asked + interval);
        self.seeds_due = (due > now).then_some(due);
        if self.seeds_due.is_none() {
            self.seeds_asked = Some((now, self.seeds));
            let longest = if self.was_healthy { REFRESH_INTERVAL } else { LONGEST_RETRY };
            self.seeds = (2 * self.seeds).min(longest);
        }
        self.seeds_due.is_none()
    }

    pub(super) fn needs_no_seeds(&mut self) {
        self.seeds_due = None;
    }

    pub(super) fn record_change(&mut self) {
        *self = Self { was_healthy: self.was_healthy, ..Self::default() };
    }

    pub(super) fn wait(&mut self, is_healthy: bool, now: Instant) -> Duration {
        if is_healthy != self.was_healthy {
            self.record_change();
            self.was_healthy = is_healthy;
        }
        let wait = if is_healthy { REFRESH_INTERVAL } else { self.retry };
        if !is_healthy {
            self.retry = (2 * self.retry).min(LONGEST_RETRY);
        }
        self.seeds_due.map_or(wait, |due| wait.min(due.saturating_duration_since(now)))
    }
}

impl Default for LookUpPace {
    fn default() -> Self {
        Self {
            was_healthy: false,
            retry: RETRY_INTERVAL,
            seeds: RETRY_INTERVAL,
            seeds_due: None,
            seeds_asked: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn look_ups_are_less_frequent_while_nothing_changes() {
        let (mut pace, now) = (LookUpPace::default(), Instant::now());
        let waits: Vec<Duration> = (0..5).map(|_| pace.wait(false, now)).collect();
        assert_eq!(waits, [200, 400, 800, 1_000, 1_000].map(millis));
        assert_eq!(pace.wait(true, now), millis(5_000));
        assert_eq!(pace.wait(false, now), millis(200), "a server was lost");
        assert_eq!(pace.wait(false, now), millis(400));
        pace.record_change();
        assert_eq!(pace.wait(false, now), millis(200));
    }

    #[test]
    fn seeds_are_asked_less_and_less_often() {
        let (mut pace, mut now) = (LookUpPace::default(), Instant::now());
        pace.wait(true, now);
        assert!(pace.may_ask_seeds(now));
        for interval in [200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            assert!(!pace.may_ask_seeds(now));
            assert_eq!(pace.wait(true, now), millis(interval), "the next look-up is when they may be asked");
            now += millis(interval);
            assert!(pace.may_ask_seeds(now));
        }
        assert!(!pace.may_ask_seeds(now));
        pace.needs_no_seeds();
        assert_eq!(pace.wait(true, now), millis(5_000));
        pace.wait(false, now);
        assert!(pace.may_ask_seeds(now), "a server was lost");
        for interval in [200, 400, 800, 1_000, 1_000] {
            now += millis(interval - 1);
            assert!(!pace.may_ask_seeds(now));
            now += millis(1);
            assert!(pace.may_ask_seeds(now), "a replica may take over at any time");
        }
    }
}
