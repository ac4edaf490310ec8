//! A store that says nothing any more, or takes its time.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir::{
    limit::{Coordination, Tier},
    observe::Counter,
    store::{
        coordinated::CoordinationMetrics,
        simulated::{Condition, Network},
    },
};

use crate::fleet::{Fleet, daily};

/// Nothing is given up by the network itself, as is the case with Redis for ten seconds.
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

    fn sum(&self, metric: impl Fn(&CoordinationMetrics) -> &Counter) -> u64 {
        self.instances.iter().map(|instance| metric(instance.store.coordination_metrics()).get()).sum()
    }

    /// How many instances take the store not to answer.
    fn cut_off(&self) -> usize {
        self.instances.iter().filter(|instance| instance.store.is_store_unavailable()).count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_frozen_store_is_noticed_by_the_next_word_and_its_late_answer_counts_once() {
    let fleet = fleet(patient()).await;
    let mut asked = fleet.hit_each(10).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(fleet.counted(tier()), asked);

    fleet.shared.set(Condition::Frozen);
    let frozen = Instant::now();
    asked += fleet.hit_each(10).await;
    while fleet.cut_off() < 3 {
        sleep(Duration::from_millis(1)).await;
    }
    // a pause until they are told, which is a second where the limit is as far off as here, half a second of silence, and
    // the time of what was answered before
    let noticed = frozen.elapsed();
    let longest = Duration::from_millis(1_000 + 500 + 10);
    assert!((Duration::from_millis(500)..longest).contains(&noticed), "{noticed:?}");
    assert_eq!(fleet.sum(|metrics| &metrics.fallback), 0);

    // what was told is not told again, and what comes now is kept
    let calls = fleet.sum(|metrics| &metrics.calls);
    for _ in 0..30 {
        asked += fleet.hit_each(1).await;
        sleep(Duration::from_millis(100)).await;
        assert_eq!(fleet.cut_off(), 3);
    }
    assert_eq!(fleet.sum(|metrics| &metrics.calls), calls);
    assert_eq!(fleet.sum(|metrics| &metrics.fallback), 90);

    fleet.shared.set(Condition::Up);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(fleet.cut_off(), 0, "its answer is enough");
    sleep(Duration::from_millis(300)).await;
    assert_eq!((fleet.counted(tier()), fleet.sum(|metrics| &metrics.delivery_unknown)), (asked, 0));
}

/// However idle, the heartbeat notices.
#[tokio::test(start_paused = true)]
async fn a_frozen_store_is_noticed_by_a_heartbeat() {
    let fleet = fleet(patient()).await;
    fleet.shared.set(Condition::Frozen);
    let frozen = Instant::now();
    while fleet.cut_off() < 3 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(frozen.elapsed() <= Duration::from_millis(1_510), "{:?}", frozen.elapsed());
    fleet.shared.set(Condition::Up);
    sleep(Duration::from_millis(1_100)).await;
    assert_eq!(fleet.cut_off(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_is_not_taken_for_dead() {
    for millis in [50, 300, 450] {
        let fleet = fleet(Network { round_trip: Duration::from_millis(millis), ..patient() }).await;
        for _ in 0..100 {
            fleet.hit_each(1).await;
            sleep(Duration::from_millis(100)).await;
            assert_eq!(fleet.cut_off(), 0, "{millis} ms");
        }
        assert_eq!(fleet.sum(|metrics| &metrics.fallback), 0);
    }
}

/// What was let through without the store is known here when it is back, before it has been told.
#[tokio::test(start_paused = true)]
async fn what_was_decided_alone_is_not_forgotten_when_the_store_is_back() {
    let few = Tier { requests: 10, ..tier() };
    let fleet = Fleet::new(1, Coordination::Interval, &[few], patient()).await;
    fleet.shared.set(Condition::Down);
    while fleet.cut_off() < 1 {
        sleep(Duration::from_millis(1)).await;
    }
    let instance = &fleet.instances[0];
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += u64::from(instance.hit().await);
    }
    assert_eq!(admitted, 10);
    fleet.shared.set(Condition::Up);
    while fleet.cut_off() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..200 {
        assert!(!instance.hit().await, "it was all there is");
        sleep(Duration::from_millis(1)).await;
    }
}
