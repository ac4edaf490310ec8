//! A limit that is far off is told of seldom, and holds when it comes near all the same.

use std::time::Duration;

use weir::{
    limit::{Algorithm, Coordination, Period, Tier},
    store::simulated::Network,
};

use crate::fleet::Fleet;

const LIMIT: u64 = 20_000;

async fn fleet() -> Fleet {
    let requests = u32::try_from(LIMIT).expect("it is small");
    let day = Tier { requests, period: Period::from_secs(86_400), algorithm: Algorithm::FixedWindow };
    Fleet::new(3, Coordination::Interval, &[day], Network::default()).await
}

impl Fleet {
    fn calls(&self) -> u64 {
        self.instances.iter().map(|instance| instance.store.coordination_metrics().calls.get()).sum()
    }

    async fn admitted(&self, rate: u64, seconds: u64, weights: &[u32]) -> u64 {
        let outcomes = self.offer(rate, Duration::from_secs(seconds), weights).await;
        outcomes.iter().map(|outcome| u64::from(outcome.admitted)).sum()
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_far_off_is_told_of_once_a_second() {
    let fleet = fleet().await;
    // until all know how fast it goes
    fleet.admitted(100, 5, &[1, 1, 1]).await;
    let before = fleet.calls();
    fleet.admitted(100, 10, &[1, 1, 1]).await;
    let calls = fleet.calls() - before;
    assert!(
        (20..=36).contains(&calls),
        "{calls} words of three instances in 10 s; every 100 ms would be 300"
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_was_far_off_holds_when_all_come_at_once() {
    for weights in [[1, 1, 1], [100, 1, 1], [10, 5, 1]] {
        let fleet = fleet().await;
        let mut admitted = fleet.admitted(100, 5, &[1, 1, 1]).await;
        admitted += fleet.admitted(10_000, 4, &weights).await;
        // what remained was a fiftieth away when it was told last, and more of it was told since
        let most = LIMIT + LIMIT / 50;
        assert!((LIMIT..=most).contains(&admitted), "{weights:?}: {admitted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rush_after_a_lull_is_noticed_by_those_who_have_the_least_of_it() {
    const LIMIT: u64 = 10_000;
    let day = Tier { requests: 10_000, period: Period::from_secs(86_400), algorithm: Algorithm::FixedWindow };
    let fleet = Fleet::new(10, Coordination::Interval, &[day], Network::default()).await;
    let mut admitted = fleet.admitted(20, 30, &[1; 10]).await;
    // whoever has little of it has to hear of the others all the same
    admitted += fleet.admitted(10_000, 2, &[1000, 10, 10, 10, 10, 10, 10, 10, 10, 10]).await;
    assert!((LIMIT..=LIMIT * 101 / 100).contains(&admitted), "{admitted}");
}
