//! The effects of the network and of store failures on calls.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use weir_coordinate::simulated::{Condition, Network, SimulatedRemote, SimulatedStore};
use weir_limit::{Algorithm, OverLimitPolicy, Period};
use weir_store::{
    clock::Clock as _,
    remote::{Heartbeat, Remote as _, RemoteError, Replies, Target},
};

use crate::ops::Op;
use crate::support::{pass, store, target, tier};

fn hourly() -> Arc<Target> {
    target(vec![tier(1_000, 3_600, Algorithm::FixedWindow)], OverLimitPolicy::Ignore)
}

async fn take(remote: &SimulatedRemote, target: &Arc<Target>) -> Result<Replies, RemoteError> {
    let at = remote.store().clock().now();
    remote.call(vec![Op::Take { hits: 1 }.command(target, at)]).await
}

fn used(store: &SimulatedStore, target: &Target) -> u64 {
    store.used(target, store.clock().now())
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_a_round_trip() {
    let (store, target) = (store(), hourly());
    let remote = store.connect(Network { round_trip: Duration::from_millis(6), ..Network::default() });
    let started = Instant::now();
    let replies = take(&remote, &target).await.expect("it is up");
    assert_eq!(started.elapsed(), Duration::from_millis(6));
    assert_eq!(store.clock().now().since(replies.now), Period::from_millis(3));
    assert_eq!((replies.replies.len(), remote.calls(), remote.commands()), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn calls_overtake_each_other_only_where_the_network_reorders() {
    for reorders in [false, true] {
        let (store, target) = (store(), hourly());
        let slow = Network { round_trip: Duration::from_millis(40), reorders, ..Network::default() };
        let remote = store.connect(slow);
        let first = take(&remote, &target);
        let second = async {
            remote.set_network(Network { round_trip: Duration::from_millis(2), ..slow });
            take(&remote, &target).await
        };
        let (first, second) = tokio::join!(first, second);
        let (first, second) = (first.expect("up").now, second.expect("up").now);
        assert_eq!(second < first, reorders, "{first:?} {second:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn hits_count_if_the_reply_is_lost_but_not_if_the_request_is_lost() {
    for (lost_requests, lost_replies, counts) in [(1.0, 0.0, 0), (0.0, 1.0, 20)] {
        let (store, target) = (store(), hourly());
        let remote = store.connect(Network { lost_requests, lost_replies, ..Network::default() });
        let (mut silent, mut noticed) = (0, 0);
        for _ in 0..20 {
            let started = Instant::now();
            match take(&remote, &target).await.expect_err("it is lost") {
                RemoteError::TimedOut(after) => {
                    assert_eq!(after, Period::from_millis(500));
                    assert_eq!(started.elapsed(), Duration::from_millis(500));
                    silent += 1;
                }
                error => {
                    assert!(!error.is_definitely_not_applied(), "{error}");
                    assert!(started.elapsed() <= Duration::from_millis(2));
                    noticed += 1;
                }
            }
        }
        assert!(silent > 0 && noticed > 0, "{silent} {noticed}");
        assert_eq!(used(&store, &target), counts);
    }
}

#[tokio::test(start_paused = true)]
async fn a_frozen_store_carries_out_received_calls_when_it_is_up_again() {
    let (store, target) = (store(), hourly());
    let remote = store.connect(Network::default());
    store.set(Condition::Frozen);
    assert!(matches!(take(&remote, &target).await, Err(RemoteError::TimedOut(_))));
    assert_eq!(used(&store, &target), 0);
    store.set(Condition::Up);
    pass(1).await;
    take(&remote, &target).await.expect("it is up again");
    assert_eq!(used(&store, &target), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_carried_out_even_if_its_caller_has_given_up() {
    let (store, target) = (store(), hourly());
    let remote = store.connect(Network { round_trip: Duration::from_millis(50), ..Network::default() });
    let given_up = tokio::time::timeout(Duration::from_millis(10), take(&remote, &target)).await;
    assert!(given_up.is_err());
    drop(remote);
    // the paused clock advances only while every task waits, so the call has arrived when this sleep ends
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(used(&store, &target), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_rejects_new_calls_and_loses_calls_in_flight() {
    let (store, target) = (store(), hourly());
    let remote = store.connect(Network { round_trip: Duration::from_millis(50), ..Network::default() });
    let in_flight = take(&remote, &target);
    let stop = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        store.set(Condition::Down);
        let new = take(&remote, &target).await.expect_err("it does not listen");
        assert!(new.is_definitely_not_applied(), "{new}");
    };
    let (lost, ()) = tokio::join!(in_flight, stop);
    assert!(matches!(lost, Err(RemoteError::Unreachable(_))), "{lost:?}");
    store.set(Condition::Rejecting);
    let rejected = take(&remote, &target).await.expect("it replies");
    assert!(matches!(&rejected.replies[0], Err(error) if error.is_definitely_not_applied()));
    store.set(Condition::Up);
    take(&remote, &target).await.expect("it is up again");
    assert_eq!(used(&store, &target), 1);
}

#[tokio::test(start_paused = true)]
async fn a_partition_affects_one_instance_only() {
    let (store, target) = (store(), hourly());
    let (cut, fine) = (store.connect(Network::default()), store.connect(Network::default()));
    cut.partition(true);
    assert!(take(&cut, &target).await.is_err());
    take(&fine, &target).await.expect("it is not cut off");
    cut.partition(false);
    take(&cut, &target).await.expect("the partition has ended");
    assert_eq!(used(&store, &target), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failover_loses_the_latest_writes_and_returns_their_number() {
    let (store, target) = (store(), hourly());
    store.keep_writes(Period::from_secs(10));
    let remote = store.connect(Network::default());
    for _ in 0..10 {
        take(&remote, &target).await.expect("it is up");
        pass(98).await;
    }
    // the last hit was hourly 99 ms ago, and the others at intervals of 100 ms before it
    assert_eq!(store.fail_over(Period::from_millis(350)), 3);
    assert_eq!(used(&store, &target), 7);
    store.flush();
    assert_eq!(used(&store, &target), 0);
}

#[tokio::test(start_paused = true)]
async fn instances_are_counted_until_their_registration_ends() {
    let store = store();
    let (one, two) = (store.connect(Network::default()), store.connect(Network::default()));
    let ttl = Period::from_secs(2);
    let beat = async |remote: &SimulatedRemote, instance: &str, ttl: Period| {
        remote.heartbeat(Heartbeat { instance, ttl }).await.map(|members| members.instances)
    };
    assert_eq!(beat(&one, "one", ttl).await, Ok(1));
    assert_eq!(beat(&two, "two", ttl).await, Ok(2));
    pass(1_900).await;
    assert_eq!(beat(&one, "one", ttl).await, Ok(2));
    pass(500).await;
    assert_eq!(beat(&one, "one", ttl).await, Ok(1));
    assert_eq!(beat(&two, "two", ttl).await, Ok(2));
    assert_eq!(beat(&two, "two", Period::default()).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_run() {
    async fn run() -> Vec<Option<weir_limit::Timestamp>> {
        let (store, target) = (store(), hourly());
        let network = Network {
            jitter: Duration::from_millis(20),
            spikes: 0.2,
            spike: Duration::from_millis(100),
            lost_requests: 0.1,
            lost_replies: 0.1,
            ..Network::default()
        };
        let remote = store.connect(network);
        let mut replies_at = Vec::new();
        for _ in 0..50 {
            replies_at.push(take(&remote, &target).await.ok().map(|replies| replies.now));
        }
        replies_at
    }
    let first = run().await;
    assert!(first.iter().any(Option::is_some) && first.iter().any(Option::is_none));
    assert_eq!(first, run().await);
}
