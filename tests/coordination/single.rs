//! Hits of keys that have hardly any under `lease`: each is requested for its decision alone.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use weir::{
    limit::Coordination,
    store::simulated::{Condition, Network},
};

use crate::fleet::{Fleet, daily};

/// Nothing is leased ahead of a limit that small.
const LIMIT: u32 = 50;

async fn fleet(limit: u32) -> Fleet {
    Fleet::new(3, Coordination::Lease, &[daily(limit)], Network::default()).await
}

#[tokio::test(start_paused = true)]
async fn it_costs_one_command_and_leaves_nothing_to_report_or_to_return() {
    let fleet = fleet(LIMIT).await;
    let instance = &fleet.instances[0];
    let sent = || instance.store.coordination_metrics().commands.get();
    let before = sent();
    assert!(instance.hit().await);
    assert_eq!((sent() - before, fleet.counted(daily(LIMIT))), (1, 1));
    sleep(Duration::from_secs(30)).await;
    assert_eq!((sent() - before, fleet.counted(daily(LIMIT))), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn hits_of_all_instances_at_once_use_the_limit_and_no_more() {
    for limit in 0..14 {
        let fleet = fleet(limit).await;
        let mut hits = JoinSet::new();
        for instance in fleet.instances.iter().cycle().take(12) {
            let instance = Arc::clone(instance);
            hits.spawn(async move { instance.hit().await });
        }
        let admitted = hits.join_all().await.into_iter().filter(|admitted| *admitted).count();
        assert_eq!(admitted, (limit as usize).min(12), "of {limit}");
        assert_eq!(fleet.counted(daily(limit)), admitted as u64);
    }
}

/// The decision is made without the store, whose grant arrives later.
#[tokio::test(start_paused = true)]
async fn what_is_granted_too_late_is_given_back() {
    let fleet = fleet(LIMIT).await;
    let instance = &fleet.instances[0];
    let remote = instance.store.remote();
    remote.set_network(Network { round_trip: Duration::from_millis(100), ..Network::default() });
    assert!(instance.hit().await);
    sleep(Duration::from_millis(120)).await;
    assert_eq!(instance.failures(), (1, 0));
    remote.set_network(Network::default());
    instance.store.close().await;
    assert_eq!(fleet.counted(daily(LIMIT)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hit_whose_reply_is_lost_is_counted_as_unknown() {
    let fleet = fleet(LIMIT).await;
    let instance = &fleet.instances[0];
    let remote = instance.store.remote();
    let network = Network { timeout: Duration::from_millis(10), ..Network::default() };
    remote.set_network(Network { lost_replies: 1.0, ..network });
    assert!(instance.hit().await);
    assert_eq!(instance.failures(), (1, 1));
    remote.set_network(network);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fleet.counted(daily(LIMIT)), 2, "by the store, and by the decision that was made without it");
    // the estimate is that of the store again
    for _ in 2..LIMIT {
        assert!(instance.hit().await);
    }
    assert!(!instance.hit().await);
}

#[tokio::test(start_paused = true)]
async fn a_hit_whose_command_is_rejected_counts_once() {
    let fleet = fleet(LIMIT).await;
    let instance = &fleet.instances[0];
    fleet.shared.set(Condition::Rejecting);
    assert!(instance.hit().await);
    assert_eq!(instance.failures(), (1, 0));
    fleet.shared.set(Condition::Up);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fleet.counted(daily(LIMIT)), 1);
}
