//! A counter that is far from its limit is flushed less often, and its overshoot stays bounded.

use std::time::Duration;

use weir_coordinate::simulated::Network;
use weir_limit::{Coordination, Period, Tier};

use crate::fleet::Fleet;

const LIMIT: u64 = 20_000;

async fn fleet() -> Fleet {
    let requests = u32::try_from(LIMIT).expect("it fits");
    let day = Tier::fixed_window(requests, Period::from_secs(86_400));
    Fleet::new(3, Coordination::Interval, &[day], Network::default()).await
}

impl Fleet {
    fn calls(&self) -> u64 {
        self.instances.iter().map(|instance| instance.store.coordination_metrics().store.calls.get()).sum()
    }

    async fn admitted(&self, rate: u64, seconds: u64, weights: &[u32]) -> u64 {
        let outcomes = self.offer(rate, Duration::from_secs(seconds), weights).await;
        outcomes.iter().map(|outcome| u64::from(outcome.admitted)).sum()
    }
}

#[tokio::test(start_paused = true)]
async fn a_counter_far_from_its_limit_is_flushed_once_a_second() {
    let fleet = fleet().await;
    // until all instances know the rate
    fleet.admitted(100, 5, &[1, 1, 1]).await;
    let before = fleet.calls();
    fleet.admitted(100, 10, &[1, 1, 1]).await;
    let calls = fleet.calls() - before;
    assert!(
        (20..=36).contains(&calls),
        "{calls} flushes of three instances in 10 s; every 100 ms would be 300"
    );
}

#[tokio::test(start_paused = true)]
async fn a_burst_on_a_counter_far_from_its_limit_overshoots_by_two_percent_at_most() {
    for weights in [[1, 1, 1], [100, 1, 1], [10, 5, 1]] {
        let fleet = fleet().await;
        let mut admitted = fleet.admitted(100, 5, &[1, 1, 1]).await;
        admitted += fleet.admitted(10_000, 4, &weights).await;
        // at most a fiftieth of the limit was taken since the last flush before the burst
        let most = LIMIT + LIMIT / 50;
        assert!((LIMIT..=most).contains(&admitted), "{weights:?}: {admitted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_after_a_quiet_period_overshoots_by_one_percent_at_most() {
    const LIMIT: u64 = 10_000;
    let day = Tier::fixed_window(10_000, Period::from_secs(86_400));
    let fleet = Fleet::new(10, Coordination::Interval, &[day], Network::default()).await;
    let mut admitted = fleet.admitted(20, 30, &[1; 10]).await;
    // instances with little load must receive the counts of the busy one
    admitted += fleet.admitted(10_000, 2, &[1000, 10, 10, 10, 10, 10, 10, 10, 10, 10]).await;
    assert!((LIMIT..=LIMIT * 101 / 100).contains(&admitted), "{admitted}");
}
