//! Requests of several descriptors that count all or none, while other instances count and the store fails.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_coordinate::simulated::{Condition, Network};
use weir_limit::{Coordination, Scope};

use crate::pair::{Pair, REPORTED, over};

const MODES: [Coordination; 4] =
    [Coordination::Strict, Coordination::Lease, Coordination::Interval, Coordination::Local];

/// The default `WEIR_DECISION_BUDGET`.
const BUDGET: Duration = Duration::from_millis(15);

/// The other instance used up the small limit, which this one learns only when the store decides.
#[tokio::test(start_paused = true)]
async fn hits_are_given_back_if_another_instance_was_faster() {
    for large in MODES {
        let pair = Pair::new(large, Coordination::Strict).await;
        assert!(pair.hit(0, "large").await);
        sleep(Duration::from_secs(2)).await;
        let counted = pair.counted();
        assert!(pair.hit(1, "small").await);
        let decisions = pair.request(0, &["large", "small"]).await;
        assert_eq!(over(&decisions), [false, true], "{large:?}");
        assert_eq!((decisions[0].remaining, decisions[1].remaining), (99, 0), "{large:?}");
        if large == Coordination::Strict {
            sleep(REPORTED).await;
            assert_eq!(pair.counted(), counted);
        }
        // now this instance knows it and counts nothing
        for _ in 0..200 {
            assert_eq!(over(&pair.request(0, &["large", "small"]).await), [false, true], "{large:?}");
        }
        sleep(Duration::from_secs(2)).await;
        let mut admitted = 1;
        for _ in 0..120 {
            admitted += u64::from(pair.hit(0, "large").await);
        }
        assert_eq!(admitted, 100, "{large:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn hits_that_the_fallback_took_for_a_rejected_request_are_given_back() {
    for large in [Coordination::Strict, Coordination::Lease, Coordination::Interval] {
        let pair = Pair::new(large, Coordination::Strict).await;
        assert!(pair.hit(0, "small").await);
        pair.shared.set(Condition::Down);
        pair.until_unavailable(true).await;
        for _ in 0..60 {
            assert_eq!(over(&pair.request(0, &["large", "small"]).await), [false, true], "{large:?}");
        }
        // by the fallback, each instance admits half
        let mut admitted = 0;
        for _ in 0..60 {
            admitted += u64::from(pair.hit(0, "large").await);
        }
        assert_eq!(admitted, 50, "{large:?}");
        pair.shared.set(Condition::Up);
        pair.until_unavailable(false).await;
        pair.stores[0].close().await;
        assert_eq!(pair.counted(), 50, "{large:?}");
    }
}

/// Once it is known that the store has counted them, they are given back there too.
#[tokio::test(start_paused = true)]
async fn late_hits_of_a_rejected_request_are_given_back() {
    let pair = Pair::new(Coordination::Strict, Coordination::Strict).await;
    pair.shared.set(Condition::Frozen);
    for _ in 0..2 {
        let decisions = pair.request(0, &["large", "small"]).await;
        assert_eq!(over(&decisions), [false, true], "the fallback leaves the one hit to another instance");
        assert_eq!(decisions[0].remaining, 100);
    }
    assert_eq!(pair.stores[0].coordination_metrics().hits.delivery_unknown.get(), 0);
    pair.shared.set(Condition::Up);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(pair.counted(), 0);
}

/// However many of its descriptors the store is asked about, and however often.
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_a_frozen_store_no_longer_than_the_budget() {
    for large in MODES {
        for small in MODES {
            for used_up in [false, true] {
                let pair = Pair::new(large, small).await;
                if used_up {
                    assert!(pair.hit(0, "small").await);
                }
                pair.shared.set(Condition::Frozen);
                for keys in [&["large", "small"][..], &["large", "small", "large", "small"]] {
                    let begun = Instant::now();
                    pair.request(0, keys).await;
                    let waited = begun.elapsed();
                    assert!(waited <= BUDGET, "{large:?}, {small:?}, {used_up}: {waited:?}");
                }
            }
        }
    }
}

/// That reply would bring it nothing.
#[tokio::test(start_paused = true)]
async fn a_hit_does_not_wait_for_the_lost_reply_to_another_one() {
    let pair = Pair::new(Coordination::Lease, Coordination::Lease).await;
    let remote = pair.stores[0].remote();
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    remote.set_network(Network { lost_replies: 1.0, ..network });
    // a few would be requested for their decision alone
    let decisions = pair.request_in(Scope::Descriptor, 0, &["large"], 4).await;
    assert_eq!(over(&decisions), [false]);
    remote.set_network(network);
    let begun = Instant::now();
    let decisions = pair.request_in(Scope::Descriptor, 0, &["large"], 1).await;
    assert_eq!((begun.elapsed(), over(&decisions)), (Duration::from_millis(2), vec![false]));
}
