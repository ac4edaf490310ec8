//! The store is away, and back.

use std::time::Duration;

use tokio::time::sleep;
use weir::{
    limit::Coordination,
    store::simulated::{Condition, Network},
};

use crate::fleet::{Fleet, Instance, daily};

impl Instance {
    async fn hit_times(&self, times: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..times {
            admitted += u64::from(self.hit().await);
        }
        admitted
    }

    /// Decisions by what was granted, and without the store.
    fn decided(&self) -> (u64, u64) {
        let figures = self.store.coordination_metrics();
        (figures.leased.get(), figures.fallback.get())
    }

    /// Waits until the store is taken not to answer, or to answer.
    async fn is_cut_off(&self, cut_off: bool) {
        while self.store.is_store_unavailable() != cut_off {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// What was granted is good until it ends, whether or not there is anybody to ask for more.
#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_what_was_granted_is_used_first() {
    let fleet = Fleet::new(2, Coordination::Lease, &[daily(10_000)], Network::default()).await;
    let instance = &fleet.instances[0];
    for _ in 0..200 {
        assert_eq!(instance.hit_times(5).await, 5);
        sleep(Duration::from_millis(1)).await;
    }
    fleet.shared.set(Condition::Down);
    // much was asked for, so much is held; it would go back if nobody came
    while !instance.store.is_store_unavailable() {
        assert_eq!(instance.hit_times(1).await, 1);
        sleep(Duration::from_millis(5)).await;
    }
    let before = instance.decided();
    assert_eq!(instance.hit_times(20).await, 20);
    let after = instance.decided();
    assert_eq!((after.0 - before.0, after.1 - before.1), (20, 0));
    // then, each by itself
    assert_eq!(instance.hit_times(2_000).await, 2_000);
    assert!(instance.decided().1 > 0);
}

/// A grant must not be made of what was admitted meanwhile, however soon it is asked for.
#[tokio::test(start_paused = true)]
async fn what_was_admitted_alone_is_told_before_more_is_granted() {
    for spent in [1, 30, 60] {
        let fleet = Fleet::new(1, Coordination::Lease, &[daily(100)], Network::default()).await;
        let instance = &fleet.instances[0];
        fleet.shared.set(Condition::Down);
        instance.is_cut_off(true).await;
        let mut admitted = instance.hit_times(spent).await;
        assert_eq!((admitted, instance.decided().1), (spent as u64, spent as u64));
        fleet.shared.set(Condition::Up);
        instance.is_cut_off(false).await;
        admitted += instance.hit_times(200).await;
        sleep(Duration::from_millis(500)).await;
        admitted += instance.hit_times(200).await;
        assert_eq!(admitted, 100, "{spent} alone");
    }
}
