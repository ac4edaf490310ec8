//! Fetches of leases that several decisions share, and what else is on its way meanwhile.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use weir_coordinate::{
    CoordinationSettings,
    simulated::{Condition, Network},
};
use weir_limit::{Coordination, OverLimitPolicy, RuntimeLimit, Scope};

use crate::{
    fleet::{Fleet, daily, rule, sliding},
    pair::{Ask, Pair, over},
};

async fn alone(limit: u32) -> Fleet {
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    Fleet::new(1, Coordination::Lease, &[sliding(limit)], network).await
}

/// Two instances with a limit of 10,000 for `large` under `lease`.
async fn pair(network: Network) -> Pair {
    let settings =
        CoordinationSettings { coordination: Coordination::Lease, ..CoordinationSettings::default() };
    let of = |requests| rule(Coordination::Lease, &[daily(requests)], OverLimitPolicy::Ignore);
    let pair = Pair::start(of(10_000), of(10), settings).await;
    pair.stores[0].remote().set_network(network);
    pair
}

/// What is granted is a lease, although nobody waits for it.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_cancelled_decision_is_returned() {
    let fleet = alone(100).await;
    let instance = &fleet.instances[0];
    let is_late = timeout(Network::default().round_trip / 4, instance.hit()).await.is_err();
    assert!(is_late, "it waits");
    sleep(Duration::from_millis(20)).await;
    assert!(fleet.counted(sliding(100)) > 0);
    instance.store.close().await;
    assert_eq!(fleet.counted(sliding(100)), 0);
}

/// The store has taken and held them. It may have counted the hit that the fallback admits, so that is not reported.
#[tokio::test(start_paused = true)]
async fn hits_whose_grant_is_lost_are_counted_as_unknown() {
    let fleet = alone(1_000).await;
    let instance = &fleet.instances[0];
    let network = Network { timeout: Duration::from_millis(10), ..Network::default() };
    instance.store.remote().set_network(Network { lost_replies: 1.0, ..network });
    assert!(instance.hit().await);
    let granted = fleet.counted(sliding(1_000));
    assert!(granted > 1, "some are leased ahead");
    assert_eq!(instance.failures(), (1, granted));
    instance.store.remote().set_network(network);
    instance.store.close().await;
    assert_eq!((fleet.counted(sliding(1_000)), instance.failures()), (granted, (1, granted)));
}

#[tokio::test(start_paused = true)]
async fn hits_whose_request_is_rejected_are_not_unknown() {
    let fleet = alone(1_000).await;
    let instance = &fleet.instances[0];
    fleet.shared.set(Condition::Rejecting);
    assert!(instance.hit().await);
    assert_eq!(instance.failures(), (1, 0));
}

/// A request for a lease overtakes a report, which the store then rejects. It is sent again.
#[tokio::test(start_paused = true)]
async fn the_reply_to_a_request_does_not_acknowledge_a_report_on_its_way() {
    let network = Network { reorders: true, timeout: Duration::from_secs(10), ..Network::default() };
    let pair = pair(network).await;
    let remote = pair.stores[0].remote();
    let hits = |hits| Ask { hits, ..Ask::hit("large") };
    assert_eq!(over(&pair.ask(Scope::Descriptor, 0, &[hits(100)]).await), [false]);
    sleep(Duration::from_secs(15)).await;
    remote.set_network(Network { round_trip: Duration::from_millis(100), ..network });
    pair.ask(Scope::Descriptor, 0, &[Ask { gives_back: true, ..hits(40) }]).await;
    let sent = pair.commands(0);
    while pair.commands(0) == sent {
        sleep(Duration::from_millis(1)).await;
    }
    remote.set_network(network);
    assert_eq!(over(&pair.ask(Scope::Descriptor, 0, &[hits(500)]).await), [false]);
    pair.shared.set(Condition::Rejecting);
    sleep(Duration::from_millis(110)).await;
    pair.shared.set(Condition::Up);
    pair.stores[0].close().await;
    assert_eq!(pair.counted(), 560);
}

/// They do not cover the hits of the request, and the limit that it brings does not admit both.
#[tokio::test(start_paused = true)]
async fn leases_are_returned_before_a_limit_of_a_request_decides() {
    let pair = pair(Network::default()).await;
    assert_eq!(over(&pair.ask(Scope::Descriptor, 0, &[Ask::hit("large")]).await), [false]);
    assert_eq!(pair.counted(), 51, "50 are leased ahead");
    let own = RuntimeLimit::new([daily(100)].into_iter().collect(), OverLimitPolicy::Ignore);
    let ask = Ask { hits: 60, own: Some(own.expect("it is valid")), ..Ask::hit("large") };
    assert_eq!(over(&pair.ask(Scope::Descriptor, 0, &[ask]).await), [false]);
    assert_eq!(pair.counted(), 61);
}

/// Several decisions wait at the same time, and each key of them.
#[tokio::test(start_paused = true)]
async fn concurrent_decisions_share_a_fetch() {
    let fleet = alone(1_000).await;
    let sent = || fleet.instances[0].store.coordination_metrics().store.commands.get();
    let (before, begun) = (sent(), Instant::now());
    let hits = (0..50).map(|_| {
        let instance = Arc::clone(&fleet.instances[0]);
        async move { instance.hit().await }
    });
    let admitted = futures_util::future::join_all(hits).await;
    assert!(admitted.into_iter().all(|admitted| admitted));
    assert_eq!((sent() - before, begun.elapsed()), (1, Network::default().round_trip));
}

/// A decision that waits for the next fetch is made from the lease of the running one, so that the next one must not
/// request its hits.
#[tokio::test(start_paused = true)]
async fn the_store_grants_as_much_to_concurrent_decisions_as_to_others() {
    let mut granted = Vec::new();
    for is_concurrent in [true, false] {
        let fleet = alone(20).await;
        let instance = &fleet.instances[0];
        if is_concurrent {
            let second = async {
                sleep(Network::default().round_trip / 4).await;
                instance.hit().await
            };
            assert_eq!(tokio::join!(instance.hit(), second), (true, true));
        } else {
            assert!(instance.hit().await && instance.hit().await);
        }
        for _ in 0..2 {
            assert!(instance.hit().await);
        }
        granted.push(fleet.counted(sliding(20)));
    }
    assert_eq!(granted[0], granted[1]);
}

/// The status is that of the limit which the request brings, and leaves out what is leased and not used.
#[tokio::test(start_paused = true)]
async fn a_limit_of_a_request_counts_only_the_used_hits_of_a_lease() {
    let pair = pair(Network::default()).await;
    let own = RuntimeLimit::new([daily(5_000)].into(), OverLimitPolicy::Ignore).expect("it is valid");
    let own = |hits| [Ask { hits, own: Some(own.clone()), ..Ask::hit("large") }];
    assert_eq!(over(&pair.request_in(Scope::Descriptor, 0, &["large"], 100).await), [false]);
    let leased = pair.counted() - 100;
    assert!(leased > 0, "nothing is leased ahead");
    let mut used = 100;
    for hits in [0, leased + 10, 3] {
        used += hits;
        let decided = pair.ask(Scope::Descriptor, 0, &own(hits)).await[0];
        assert_eq!((decided.over, u64::from(decided.remaining)), (false, 5_000 - used), "{hits}");
    }
}

/// The store counts them, and would reject hits that fit beside those that are used.
#[tokio::test(start_paused = true)]
async fn a_lease_is_returned_before_a_limit_of_a_request_needs_it() {
    let pair = pair(Network::default()).await;
    assert_eq!(over(&pair.request_in(Scope::Descriptor, 0, &["large"], 100).await), [false]);
    let leased = pair.counted() - 100;
    let limit = u32::try_from(100 + 2 * leased).expect("it is small");
    let own = RuntimeLimit::new([daily(limit)].into(), OverLimitPolicy::Ignore).expect("it is valid");
    let asks = [Ask { hits: 2 * leased, own: Some(own), ..Ask::hit("large") }];
    let decided = pair.ask(Scope::Descriptor, 0, &asks).await[0];
    assert_eq!((decided.over, decided.remaining), (false, 0));
}

/// They are taken neither from the lease nor added to it.
#[tokio::test(start_paused = true)]
async fn hits_that_are_given_back_during_an_outage_leave_a_held_lease() {
    let fleet = alone(1_000).await;
    let instance = &fleet.instances[0];
    for _ in 0..2 {
        assert!(instance.hit().await);
    }
    fleet.shared.set(Condition::Down);
    while !instance.store.is_store_unavailable() {
        sleep(Duration::from_millis(1)).await;
    }
    instance.give_back().await;
    fleet.shared.set(Condition::Up);
    while instance.store.is_store_unavailable() {
        sleep(Duration::from_millis(1)).await;
    }
    instance.store.close().await;
    assert_eq!(fleet.counted(sliding(1_000)), 1);
}
