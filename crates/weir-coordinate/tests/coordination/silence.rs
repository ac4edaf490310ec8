//! A store that stops replying, or is slow.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_coordinate::{
    CoordinationMetrics,
    simulated::{Condition, Network},
};
use weir_limit::{Coordination, Tier};

use crate::fleet::{Fleet, daily};

/// Returns a network whose calls time out after ten seconds, as with Redis.
fn patient() -> Network {
    Network { timeout: Duration::from_secs(10), ..Network::default() }
}

const LIMIT: u32 = 1_000_000;

fn tier() -> Tier {
    daily(LIMIT)
}

async fn fleet(network: Network) -> Fleet {
    Fleet::new(3, Coordination::Interval, &[tier()], network).await
}

impl Fleet {
    async fn hit_each(&self, times: u64) -> u64 {
        for instance in &self.instances {
            for _ in 0..times {
                assert!(instance.hit().await);
            }
        }
        times * self.instances.len() as u64
    }

    fn sum(&self, metric: impl Fn(&CoordinationMetrics) -> u64) -> u64 {
        self.instances.iter().map(|instance| metric(instance.store.coordination_metrics())).sum()
    }

    /// Returns how many instances consider the store unavailable.
    fn unavailable(&self) -> usize {
        self.instances.iter().filter(|instance| instance.store.is_store_unavailable()).count()
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_flush_notices_a_frozen_store_and_is_not_repeated() {
    let fleet = fleet(patient()).await;
    let mut sent = fleet.hit_each(10).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(fleet.counted(tier()), sent);

    fleet.shared.set(Condition::Frozen);
    let frozen = Instant::now();
    sent += fleet.hit_each(10).await;
    while fleet.unavailable() < 3 {
        sleep(Duration::from_millis(1)).await;
    }
    // the pause until the next flush, which is one second far from the limit; half a second of silence; and the round
    // trip of the last reply
    let noticed = frozen.elapsed();
    let longest = Duration::from_millis(1_000 + 500 + 10);
    assert!((Duration::from_millis(500)..longest).contains(&noticed), "{noticed:?}");
    assert_eq!(fleet.sum(|metrics| metrics.decisions.fallback.get()), 0);

    // reported hits are not reported again, and new hits stay pending
    let calls = fleet.sum(|metrics| metrics.store.calls.get());
    for _ in 0..30 {
        sent += fleet.hit_each(1).await;
        sleep(Duration::from_millis(100)).await;
        assert_eq!(fleet.unavailable(), 3);
    }
    assert_eq!(fleet.sum(|metrics| metrics.store.calls.get()), calls);
    assert_eq!(fleet.sum(|metrics| metrics.decisions.fallback.get()), 90);

    fleet.shared.set(Condition::Up);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(fleet.unavailable(), 0, "one reply is enough");
    // the late reply says that the limit is far away, so that the rest may wait for the longest pause
    let up = Instant::now();
    while fleet.counted(tier()) < sent && up.elapsed() < Duration::from_millis(1_200) {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((fleet.counted(tier()), fleet.sum(|metrics| metrics.hits.delivery_unknown.get())), (sent, 0));
}

/// An idle instance notices a frozen store, too.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_notices_a_frozen_store() {
    let fleet = fleet(patient()).await;
    fleet.shared.set(Condition::Frozen);
    let frozen = Instant::now();
    while fleet.unavailable() < 3 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(frozen.elapsed() <= Duration::from_millis(1_510), "{:?}", frozen.elapsed());
    fleet.shared.set(Condition::Up);
    sleep(Duration::from_millis(1_100)).await;
    assert_eq!(fleet.unavailable(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_stays_available() {
    for millis in [50, 300, 450] {
        let fleet = fleet(Network { round_trip: Duration::from_millis(millis), ..patient() }).await;
        for _ in 0..100 {
            fleet.hit_each(1).await;
            sleep(Duration::from_millis(100)).await;
            assert_eq!(fleet.unavailable(), 0, "{millis} ms");
        }
        assert_eq!(fleet.sum(|metrics| metrics.decisions.fallback.get()), 0);
    }
}

/// When the store is available again, hits that the fallback admitted count in this instance before they are reported.
#[tokio::test(start_paused = true)]
async fn hits_admitted_by_the_fallback_count_when_the_store_is_available_again() {
    let few = Tier { requests: 10, ..tier() };
    let fleet = Fleet::new(1, Coordination::Interval, &[few], patient()).await;
    fleet.shared.set(Condition::Down);
    while fleet.unavailable() < 1 {
        sleep(Duration::from_millis(1)).await;
    }
    let instance = &fleet.instances[0];
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += u64::from(instance.hit().await);
    }
    assert_eq!(admitted, 10);
    fleet.shared.set(Condition::Up);
    while fleet.unavailable() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..200 {
        assert!(!instance.hit().await, "the limit is used up");
        sleep(Duration::from_millis(1)).await;
    }
}
