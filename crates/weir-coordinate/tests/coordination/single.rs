//! Hits of keys that have hardly any under `lease`: each is requested for its decision alone, and a limit that is far
//! away is leased ahead with the first one.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{task::JoinSet, time::sleep};
use weir_coordinate::simulated::{Condition, Network};
use weir_limit::Coordination;

use crate::fleet::{Fleet, daily};

/// Nothing is leased ahead of a limit that small.
const LIMIT: u32 = 50;

/// Of which three instances and a lone one lease [`AHEAD`] hits ahead.
const FAR: [(usize, u32); 2] = [(3, 3_000), (1, 80)];
const AHEAD: u64 = 10;

async fn fleet(limit: u32) -> Fleet {
    fleet_of(3, limit).await
}

async fn fleet_of(instances: usize, limit: u32) -> Fleet {
    Fleet::new(instances, Coordination::Lease, &[daily(limit)], Network::default()).await
}

#[tokio::test(start_paused = true)]
async fn it_costs_one_command_and_leaves_nothing_to_report_or_to_return() {
    let fleet = fleet(LIMIT).await;
    let instance = &fleet.instances[0];
    let sent = || instance.store.coordination_metrics().store.commands.get();
    let before = sent();
    assert!(instance.hit().await);
    assert_eq!((sent() - before, fleet.counted(daily(LIMIT))), (1, 1));
    sleep(Duration::from_secs(30)).await;
    assert_eq!((sent() - before, fleet.counted(daily(LIMIT))), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_leased_ahead_with_it_needs_no_other_command() {
    for (instances, limit) in FAR {
        let fleet = fleet_of(instances, limit).await;
        let instance = &fleet.instances[0];
        let sent = || instance.store.coordination_metrics().store.commands.get();
        let before = sent();
        for hit in 0..=AHEAD {
            assert!(instance.hit().await);
            assert_eq!(
                (sent() - before, fleet.counted(daily(limit))),
                (1, AHEAD + 1),
                "hit {hit} of {limit}"
            );
        }
        assert!(instance.hit().await);
        assert_eq!(sent() - before, 2, "{limit}");
    }
}

/// Otherwise they would hold more than a hundredth of the limit. Those of one instant share a command; those that come
/// later wait for the reply to the first, and use what it holds.
#[tokio::test(start_paused = true)]
async fn hits_at_the_same_time_lease_ahead_once() {
    let apart = Network::default().round_trip / 8;
    for ((instances, limit), (apart, taken)) in
        FAR.into_iter().flat_map(|fleet| [(fleet, (Duration::ZERO, 3)), (fleet, (apart, 1))])
    {
        let fleet = fleet_of(instances, limit).await;
        let mut hits = JoinSet::new();
        for i in 0..3 {
            let instance = Arc::clone(&fleet.instances[0]);
            hits.spawn(async move {
                sleep(apart * i).await;
                instance.hit().await
            });
        }
        assert_eq!(hits.join_all().await, [true; 3]);
        assert_eq!(fleet.counted(daily(limit)), AHEAD + taken, "{limit}");
        fleet.instances[0].store.close().await;
        assert_eq!(fleet.counted(daily(limit)), 3, "the others were given back");
    }
}

/// Whether the decision waits, or was cancelled.
#[tokio::test(start_paused = true)]
async fn an_instance_that_stops_meanwhile_gives_back_what_is_not_used() {
    let fleets = FAR.into_iter().chain([(3, LIMIT), (1, 5)]);
    for ((instances, limit), is_cancelled) in fleets.flat_map(|fleet| [(fleet, false), (fleet, true)]) {
        let fleet = fleet_of(instances, limit).await;
        let instance = Arc::clone(&fleet.instances[0]);
        let round_trip = Duration::from_millis(10);
        instance.store.remote().set_network(Network { round_trip, ..Network::default() });
        let hit = tokio::spawn({
            let instance = Arc::clone(&instance);
            async move { instance.hit().await }
        });
        sleep(round_trip / 2).await;
        if is_cancelled {
            hit.abort();
            assert!(hit.await.is_err(), "it has not been decided");
            instance.store.close().await;
        } else {
            instance.store.close().await;
            assert!(hit.await.expect("it does not panic"));
        }
        assert_eq!(fleet.counted(daily(limit)), u64::from(!is_cancelled), "of {limit}");
    }
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
    for (instances, limit) in [(3, LIMIT), FAR[0], FAR[1]] {
        let fleet = fleet_of(instances, limit).await;
        let instance = &fleet.instances[0];
        let remote = instance.store.remote();
        remote.set_network(Network { round_trip: Duration::from_millis(100), ..Network::default() });
        assert!(instance.hit().await);
        sleep(Duration::from_millis(120)).await;
        assert_eq!(instance.failures(), (1, 0));
        remote.set_network(Network::default());
        instance.store.close().await;
        assert_eq!(fleet.counted(daily(limit)), 1, "of {limit}");
    }
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
    assert_eq!(fleet.counted(daily(LIMIT)), 1, "by the store alone");
    // the estimate is that of the store again
    for _ in 1..LIMIT {
        assert!(instance.hit().await);
    }
    assert!(!instance.hit().await);
}

#[tokio::test(start_paused = true)]
async fn hits_ahead_whose_grant_is_lost_are_counted_as_unknown() {
    for (instances, limit) in FAR {
        let fleet = fleet_of(instances, limit).await;
        let instance = &fleet.instances[0];
        let network = Network { timeout: Duration::from_millis(10), lost_replies: 1.0, ..Network::default() };
        instance.store.remote().set_network(network);
        assert!(instance.hit().await);
        assert_eq!(instance.failures(), (1, AHEAD + 1), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hit_whose_command_is_rejected_counts_once() {
    for (instances, limit) in [(3, LIMIT), FAR[0], FAR[1]] {
        let fleet = fleet_of(instances, limit).await;
        let instance = &fleet.instances[0];
        fleet.shared.set(Condition::Rejecting);
        assert!(instance.hit().await);
        assert_eq!(instance.failures(), (1, 0));
        fleet.shared.set(Condition::Up);
        sleep(Duration::from_secs(20)).await;
        assert_eq!(fleet.counted(daily(limit)), 1, "of {limit}");
        instance.give_back().await;
        sleep(Duration::from_secs(20)).await;
        assert_eq!(fleet.counted(daily(limit)), 0, "of {limit}");
    }
}

/// Nothing waits for it any more.
#[tokio::test(start_paused = true)]
async fn hits_are_reported_after_a_request_that_was_cancelled_before_it_was_sent() {
    for (instances, limit) in [(3, LIMIT), FAR[0], FAR[1]] {
        let fleet = fleet_of(instances, limit).await;
        let instance = &fleet.instances[0];
        let mut first = Box::pin(instance.hit());
        assert!((&mut first).now_or_never().is_none(), "it waits");
        drop(first);
        instance.give_back().await;
        assert!(instance.hit().await);
        sleep(Duration::from_secs(20)).await;
        instance.store.close().await;
        assert_eq!((fleet.counted(daily(limit)), instance.failures()), (1, (0, 0)), "of {limit}");
    }
}
