//! Starts and ends one by one: what waits, what is undone, and what the store hears of the fallback.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use weir_coordinate::simulated::{Condition, Network};
use weir_limit::{Basis, OnStoreFailure, PlaceName};
use weir_store::TakenPlaces;

use crate::fleet::{Fleet, Instance, limit};

fn slow(millis: u64) -> Network {
    Network { round_trip: Duration::from_millis(millis), ..Network::default() }
}

#[tokio::test(start_paused = true)]
async fn the_store_decides_and_ends_free_places_anywhere() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 2_000_000_000);
    let instances = fleet.started(2, Network::default(), limit(2, 60_000)).await;
    let (one, two) = (instances[0].take(1).await, instances[1].take(2).await);
    assert_eq!((one.decisions[0].over, one.decisions[0].before), (false, 0));
    assert_eq!((two.decisions[0].over, two.decisions[0].before), (false, 1));
    assert_eq!(fleet.places(), [1, 2]);
    let three = instances[0].take(3).await.decisions[0];
    assert_eq!((three.over, three.before, three.basis == Basis::Fallback), (true, 2, false));
    instances[1].end(one.name);
    sleep(Duration::from_millis(5)).await;
    assert_eq!(fleet.places(), [2]);
    assert!(!instances[0].take(4).await.decisions[0].over);
    // twice is as once, and unknown ends are counted
    instances[1].end(one.name);
    sleep(Duration::from_millis(5)).await;
    assert_eq!(fleet.places(), [2, 4]);
    let unknown = |i: usize| instances[i].places("unknown");
    assert_eq!((unknown(0), unknown(1)), (0, 0), "it was repeated here");
    instances[0].end(one.name);
    sleep(Duration::from_millis(5)).await;
    assert_eq!(unknown(0), 1);
}

#[tokio::test(start_paused = true)]
async fn starts_that_wait_share_calls() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instance = &fleet.started(1, slow(4), limit(50, 60_000)).await[0];
    let before = instance.store.remote().calls();
    let all = futures_util::future::join_all((1..=100).map(|serial| instance.take(serial))).await;
    assert_eq!(all.iter().filter(|taken| !taken.decisions[0].over).count(), 50);
    let calls = instance.store.remote().calls() - before;
    assert!(calls <= 10, "{calls} calls");
    let mut before: Vec<u32> = all.iter().map(|taken| taken.decisions[0].before).collect();
    before.truncate(50);
    assert_eq!(before, (0..50).collect::<Vec<_>>());
    // ends, too
    let before = instance.store.remote().calls();
    for taken in all.iter().take(50) {
        instance.end(taken.name);
    }
    sleep(Duration::from_millis(20)).await;
    assert!(fleet.places().is_empty());
    assert!(instance.store.remote().calls() - before <= 3);
}

/// A caller with little time leaves the others theirs.
#[tokio::test(start_paused = true)]
async fn starts_with_little_time_do_not_spoil_others() {
    let fleet = Fleet::new(OnStoreFailure::Deny, 1, 0);
    let instance = &fleet.started(1, slow(4), limit(50, 60_000)).await[0];
    let hurried = (1..=40).map(|serial| timeout_of(instance, serial));
    let all = futures_util::future::join(
        futures_util::future::join_all(hurried),
        futures_util::future::join_all((100..140).map(|serial| instance.take(serial))),
    );
    let (hurried, others) = all.await;
    assert!(hurried.iter().all(|taken| taken.decisions[0].basis == Basis::Fallback));
    assert!(
        others.iter().all(|taken| taken.decisions[0].basis != Basis::Fallback && !taken.decisions[0].over)
    );
    sleep(Duration::from_millis(100)).await;
    assert_eq!(fleet.places().len(), 40);
}

async fn timeout_of(instance: &Instance, serial: u64) -> TakenPlaces {
    instance.take_within(&["a"], serial, Some(Duration::from_millis(2))).await
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_too_late_takes_nothing() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, -3_000_000_000);
    let instance = &fleet.started(1, Network::default(), limit(4, 60_000)).await[0];
    // 20 ms there, and 20 back
    instance.store.remote().set_network(slow(40));
    let asked = Instant::now();
    let taken = instance.take(1).await;
    assert!(
        taken.decisions[0].basis == Basis::Fallback
            && !taken.decisions[0].over
            && taken.name.is_without_store()
    );
    assert_eq!(asked.elapsed(), Duration::from_millis(15));
    instance.store.remote().set_network(Network::default());
    instance.end(taken.name);
    sleep(Duration::from_secs(1)).await;
    assert!(fleet.places().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_frees_what_was_not_admitted_and_keeps_what_was() {
    for (failure, places) in [(OnStoreFailure::Deny, 0), (OnStoreFailure::Local, 1)] {
        let fleet = Fleet::new(failure, 1, 0);
        let instance = &fleet.started(1, Network::default(), limit(4, 60_000)).await[0];
        // 10 ms there, and 10 back
        instance.store.remote().set_network(slow(20));
        let taken = instance.take(1).await;
        assert_eq!(
            (taken.decisions[0].over, taken.decisions[0].basis == Basis::Fallback),
            (places == 0, true)
        );
        assert_eq!(fleet.places().len(), 1);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(fleet.places().len(), places, "{failure:?}");
        assert_eq!(instance.places("undone"), 1 - places as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_keeps_no_place() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instance = &fleet.started(1, slow(8), limit(4, 60_000)).await[0];
    // before the call arrives, before its reply does, and once all that is left is to hear it
    for millis in [1, 6, 8] {
        drop(timeout(Duration::from_millis(millis), instance.take(millis)).await);
        sleep(Duration::from_millis(50)).await;
        assert!(fleet.places().is_empty(), "{millis}");
    }
    let mut taken = Box::pin(instance.take(9));
    assert!(timeout(Duration::from_millis(1), &mut taken).await.is_err());
    // the reply is there, and nobody has looked
    sleep(Duration::from_millis(20)).await;
    assert_eq!(fleet.places(), [9]);
    drop(taken);
    sleep(Duration::from_millis(50)).await;
    assert!(fleet.places().is_empty());
}

/// A reply that is lost with its connection, and one that nobody notices.
#[tokio::test(start_paused = true)]
async fn what_may_have_been_taken_is_ended() {
    let fleet = Fleet::new(OnStoreFailure::Deny, 1, 0);
    let instance = &fleet.started(1, Network::default(), limit(40, 60_000)).await[0];
    instance.store.remote().set_network(Network { lost_replies: 1.0, ..Network::default() });
    for serial in 1..20 {
        let (asked, is_away) = (Instant::now(), instance.store.is_store_unavailable());
        let taken = instance.take(serial).await.decisions[0];
        assert!(taken.over && taken.basis == Basis::Fallback);
        // while it may be taken, an end could be overtaken
        assert!(is_away || asked.elapsed() == Duration::from_millis(15));
    }
    instance.store.remote().set_network(Network::default());
    sleep(Duration::from_secs(4)).await;
    assert!(fleet.places().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_has_places_of_several_counters() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instance = &fleet.started(1, slow(4), limit(1, 60_000)).await[0];
    let held = instance.take_of(&["b"], 1).await;
    let taken = instance.take_of(&["a", "b"], 2).await;
    assert_eq!((taken.decisions[0].over, taken.decisions[1].over), (false, true));
    assert_eq!(fleet.places(), [2]);
    instance.end_of("a", taken.name, true);
    instance.end_of("b", held.name, false);
    sleep(Duration::from_millis(20)).await;
    // a caller that leaves keeps none
    let mut taking = Box::pin(instance.take_of(&["a", "b"], 3));
    assert!(timeout(Duration::from_millis(3), &mut taking).await.is_err());
    assert_eq!(fleet.places(), [3]);
    drop(taking);
    sleep(Duration::from_millis(20)).await;
    let taken = instance.take_of(&["a", "b"], 4).await;
    assert!(taken.decisions.iter().all(|taken| !taken.over));
    assert_eq!(fleet.places(), [4]);
    instance.end(taken.name);
    sleep(Duration::from_millis(20)).await;
    // two of one counter are one
    let twice = instance.take_of(&["a", "a"], 5).await;
    assert!(twice.decisions.len() == 2 && twice.decisions.iter().all(|taken| !taken.over));
    assert_eq!(fleet.places(), [5]);
}

/// The reply is lost, and nobody notices until the store has heard of what the fallback has admitted.
#[tokio::test(start_paused = true)]
async fn what_the_fallback_has_admitted_is_not_ended_for_want_of_a_reply() {
    for seed in 0..8 {
        let fleet = Fleet::new(OnStoreFailure::Local, seed, 0);
        let instance = &fleet.started(1, Network::default(), limit(4, 60_000)).await[0];
        let timeout = Duration::from_millis(100);
        instance.store.remote().set_network(Network { lost_replies: 1.0, timeout, ..Network::default() });
        let mut taking = Box::pin(instance.take(1));
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut taking).await.is_err());
        instance.store.remote().set_network(Network::default());
        let taken = taking.await;
        assert!(taken.decisions[0].basis == Basis::Fallback && !taken.decisions[0].over);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(fleet.places(), [1]);
        instance.end(taken.name);
        sleep(Duration::from_millis(20)).await;
        assert!(fleet.places().is_empty());
    }
}

/// Its end counts at all counters as that of a request of the fallback, also where the store has admitted it.
#[tokio::test(start_paused = true)]
async fn the_flag_of_a_name_counts_for_all_of_its_places() {
    let fleet = Fleet::new(OnStoreFailure::Local, 3, 0);
    let slow =
        Network { spikes: 0.5, spike: Duration::from_millis(40), reorders: true, ..Network::default() };
    let instance = &fleet.started(1, slow, limit(20, 60_000)).await[0];
    let mut mixed = 0;
    // more than one call has
    let keys: Vec<String> = std::iter::once("a".to_owned()).chain((0..64).map(|i| i.to_string())).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for serial in 0..40 {
        let taken = instance.take_of(&keys, serial).await;
        let by_fallback = [0, 64].map(|i: usize| taken.decisions[i].basis == Basis::Fallback);
        assert_eq!(taken.name.is_without_store(), by_fallback != [false; 2]);
        mixed += usize::from(by_fallback == [false, true]);
        for key in &keys {
            instance.end_of(key, taken.name, false);
        }
        sleep(Duration::from_millis(200)).await;
    }
    assert!(mixed > 3 && fleet.places().is_empty(), "{mixed}");
    fleet.store.set(Condition::Down);
    sleep(Duration::from_secs(4)).await;
    let mut admitted = 0;
    for serial in 100..200 {
        admitted += usize::from(!instance.take(serial).await.decisions[0].over);
    }
    assert_eq!(admitted, 20);
}

#[tokio::test(start_paused = true)]
async fn what_the_fallback_admits_is_added_when_the_store_replies() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instances = fleet.started(2, Network::default(), limit(4, 60_000)).await;
    let first = instances[0].take(1).await;
    fleet.store.set(Condition::Down);
    sleep(Duration::from_secs(4)).await;
    assert!(instances.iter().all(|instance| instance.store.is_store_unavailable()));
    // one place is known, so that each has one more
    let mut admitted = Vec::new();
    for (serial, i) in [(2, 0), (3, 1), (4, 0), (5, 1)] {
        let taken = instances[i].take(serial).await;
        assert!(taken.decisions[0].basis == Basis::Fallback);
        if !taken.decisions[0].over {
            admitted.push(taken.name);
        }
    }
    assert_eq!(admitted.iter().map(PlaceName::serial).collect::<Vec<_>>(), [2, 3, 5]);
    // one ends where it did not begin
    instances[1].end(admitted[0]);
    fleet.store.set(Condition::Up);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(fleet.places(), [1, 3, 5]);
    instances[0].end(first.name);
    instances[0].end(admitted[1]);
    instances[0].end(admitted[2]);
    sleep(Duration::from_millis(20)).await;
    assert!(fleet.places().is_empty());
}

#[tokio::test(start_paused = true)]
async fn ends_beyond_the_bound_are_dropped_and_counted() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instance = &fleet.started(1, Network::default(), limit(4, 60_000)).await[0];
    let name = instance.take(1).await.name;
    fleet.store.set(Condition::Down);
    sleep(Duration::from_secs(4)).await;
    for serial in 2..=10_003 {
        instance.end(PlaceName::new(name.start(), serial, false));
    }
    let dropped = || instance.store.coordination_metrics().places.ends_dropped.get();
    assert_eq!(dropped(), 2);
    let before = instance.store.remote().calls();
    fleet.store.set(Condition::Up);
    sleep(Duration::from_secs(3)).await;
    let calls = instance.store.remote().calls() - before;
    assert!((10..=12).contains(&calls), "{calls} calls");
    assert_eq!((fleet.places(), dropped()), (vec![1], 2));
}

#[tokio::test(start_paused = true)]
async fn the_last_ends_are_sent_before_an_instance_leaves() {
    let fleet = Fleet::new(OnStoreFailure::Local, 1, 0);
    let instance = &fleet.started(1, slow(10), limit(4, 60_000)).await[0];
    let name = instance.take(1).await.name;
    instance.end(name);
    instance.store.close().await;
    assert!(fleet.places().is_empty());
}
