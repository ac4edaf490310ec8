//! Decisions while the store is unavailable, and when it is available again.

use std::time::Duration;

use tokio::time::sleep;
use weir_coordinate::simulated::{Condition, Network};
use weir_limit::Coordination;

use crate::fleet::{Fleet, Instance, daily};

impl Instance {
    async fn hit_times(&self, times: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..times {
            admitted += u64::from(self.hit().await);
        }
        admitted
    }

    /// Returns the number of decisions from leases and by the fallback.
    fn decisions(&self) -> (u64, u64) {
        let metrics = self.store.coordination_metrics();
        (metrics.decisions.leased.get(), metrics.decisions.fallback.get())
    }

    /// Waits until the instance considers the store unavailable, or available if `unavailable` is false.
    async fn until_unavailable(&self, unavailable: bool) {
        while self.store.is_store_unavailable() != unavailable {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A lease is valid until it ends, even while the store is unavailable.
#[tokio::test(start_paused = true)]
async fn while_the_store_is_unavailable_leases_are_used_first() {
    let fleet = Fleet::new(2, Coordination::Lease, &[daily(10_000)], Network::default()).await;
    let instance = &fleet.instances[0];
    for _ in 0..200 {
        assert_eq!(instance.hit_times(5).await, 5);
        sleep(Duration::from_millis(1)).await;
    }
    fleet.shared.set(Condition::Down);
    // continued hits prevent the large lease from being returned
    while !instance.store.is_store_unavailable() {
        assert_eq!(instance.hit_times(1).await, 1);
        sleep(Duration::from_millis(5)).await;
    }
    let before = instance.decisions();
    assert_eq!(instance.hit_times(20).await, 20);
    let after = instance.decisions();
    assert_eq!((after.0 - before.0, after.1 - before.1), (20, 0));
    // then the fallback decides
    assert_eq!(instance.hit_times(2_000).await, 2_000);
    assert!(instance.decisions().1 > 0);
}

/// The store must not grant hits that the fallback has admitted, however early the next fetch is.
#[tokio::test(start_paused = true)]
async fn hits_admitted_by_the_fallback_are_reported_before_the_next_grant() {
    for spent in [1, 30, 60] {
        let fleet = Fleet::new(1, Coordination::Lease, &[daily(100)], Network::default()).await;
        let instance = &fleet.instances[0];
        fleet.shared.set(Condition::Down);
        instance.until_unavailable(true).await;
        let mut admitted = instance.hit_times(spent).await;
        assert_eq!((admitted, instance.decisions().1), (spent as u64, spent as u64));
        fleet.shared.set(Condition::Up);
        instance.until_unavailable(false).await;
        admitted += instance.hit_times(200).await;
        sleep(Duration::from_millis(500)).await;
        admitted += instance.hit_times(200).await;
        assert_eq!(admitted, 100, "{spent} by the fallback");
    }
}

/// Otherwise the store would give back nothing, since it counts nothing yet, and then count the hits of the fallback.
#[tokio::test(start_paused = true)]
async fn hits_admitted_by_the_fallback_are_reported_before_they_are_given_back() {
    for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval] {
        let fleet = Fleet::new(1, mode, &[daily(100)], Network::default()).await;
        let instance = &fleet.instances[0];
        fleet.shared.set(Condition::Down);
        instance.until_unavailable(true).await;
        assert_eq!((instance.hit_times(3).await, instance.decisions().1), (3, 3));
        fleet.shared.set(Condition::Up);
        instance.until_unavailable(false).await;
        assert_eq!(fleet.counted(daily(100)), 0, "nothing is reported yet");
        for _ in 0..2 {
            instance.give_back().await;
        }
        instance.store.close().await;
        assert_eq!(fleet.counted(daily(100)), 1, "{mode:?}");
    }
}
