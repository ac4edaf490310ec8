//! Rejections: those that this instance makes by itself, and when it asks the store whether hits were given back; and
//! those of reports, by the store.

use std::time::Duration;

use tokio::time::sleep;
use weir_coordinate::simulated::{Condition, Network};
use weir_limit::{Coordination, OverLimitPolicy, Scope};

use crate::{
    fleet::{Fleet, daily, rule},
    pair::{Ask, Pair, over},
};

async fn fleet(instances: usize, mode: Coordination) -> Fleet {
    let fleet = Fleet::new(instances, mode, &[daily(1)], Network::default()).await;
    assert!(fleet.instances[0].hit().await);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fleet.counted(daily(1)), 1);
    fleet
}

#[tokio::test(start_paused = true)]
async fn a_rejected_client_is_admitted_after_another_instance_gave_a_hit_back() {
    for mode in [Coordination::Interval, Coordination::Lease] {
        let fleet = fleet(2, mode).await;
        assert!(!fleet.instances[0].hit().await);
        fleet.instances[1].give_back().await;
        let mut attempts = 0;
        while !fleet.instances[0].hit().await {
            attempts += 1;
            assert!(attempts < 40, "it does not ask the store: {mode:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_all_or_none_is_admitted_after_another_instance_gave_a_hit_back() {
    for mode in [Coordination::Interval, Coordination::Lease] {
        for keys in [&["small"][..], &["small", "large"], &["large", "small"]] {
            let pair = Pair::new(mode, mode).await;
            assert!(pair.hit(0, "small").await);
            sleep(Duration::from_secs(2)).await;
            assert!(over(&pair.request(0, keys).await).contains(&true));
            pair.ask(Scope::Descriptor, 1, &[Ask { gives_back: true, ..Ask::hit("small") }]).await;
            let mut attempts = 0;
            while over(&pair.request(0, keys).await).contains(&true) {
                attempts += 1;
                assert!(attempts < 40, "it does not ask the store: {mode:?}, {keys:?}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Nobody else can have given anything back.
#[tokio::test(start_paused = true)]
async fn an_instance_that_is_alone_does_not_ask() {
    let fleet = fleet(1, Coordination::Interval).await;
    let sent = || fleet.instances[0].store.coordination_metrics().store.commands.get();
    let before = sent();
    for _ in 0..50 {
        assert!(!fleet.instances[0].hit().await);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(sent(), before);
}

/// As Redis does when it has no memory left: it replies, so it is not unavailable.
#[tokio::test(start_paused = true)]
async fn a_report_that_the_store_rejects_is_not_sent_again_at_once() {
    let pair = Pair::new(Coordination::Interval, Coordination::Interval).await;
    for _ in 0..95 {
        assert!(pair.hit(0, "large").await);
    }
    sleep(Duration::from_secs(1)).await;
    pair.shared.set(Condition::Rejecting);
    for _ in 0..5 {
        assert!(pair.hit(0, "large").await);
    }
    let before = pair.commands(0);
    sleep(Duration::from_secs(20)).await;
    let sent = pair.commands(0) - before;
    assert!((1..=250).contains(&sent), "{sent} commands in 20 s");
    pair.shared.set(Condition::Up);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(pair.counted(), 100);
}

/// Hits that do not fit say nothing about how many will be used.
#[tokio::test(start_paused = true)]
async fn a_request_of_too_many_hits_has_nothing_leased() {
    let large = rule(Coordination::Lease, &[daily(100_000)], OverLimitPolicy::Ignore);
    let pair = Pair::with(large.clone(), large).await;
    for turn in 0..300 {
        assert!(pair.hit(0, "large").await);
        if turn % 10 == 5 {
            assert!(pair.request_in(Scope::Descriptor, 0, &["large"], 4_000_000_000).await[0].over);
        }
        sleep(Duration::from_millis(4)).await;
    }
    // of which one of two instances may hold a quarter
    let counted = pair.counted();
    assert!(counted <= 30_000, "it holds {counted} of 100,000");
}
