//! Decisions that wait for a lease, and are cancelled or not polled.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{task::JoinHandle, time::sleep};
use weir_coordinate::simulated::Network;
use weir_limit::{Coordination, OverLimitPolicy, Period, Tier};

use crate::fleet::{Fleet, daily, rule, sliding};

const LIMIT: u32 = 100;

async fn fleet() -> Fleet {
    Fleet::new(3, Coordination::Lease, &[daily(LIMIT)], Network::default()).await
}

/// A connection whose client reads no responses polls none of its decisions.
#[tokio::test(start_paused = true)]
async fn a_decision_that_is_not_polled_delays_no_other() {
    let fleet = fleet().await;
    let instance = &fleet.instances[0];
    let mut resting = Box::pin(instance.hit());
    assert!((&mut resting).now_or_never().is_none(), "it waits");
    for _ in 0..3 {
        assert!(instance.hit().await);
    }
    assert!(resting.await);
    assert_eq!(instance.failures(), (0, 0));
}

/// Decisions that are cancelled before their hits are requested. Of a limit that small, nothing is leased ahead.
#[tokio::test(start_paused = true)]
async fn nothing_is_requested_for_a_cancelled_decision() {
    for (instances, tier) in [(3, daily(5)), (1, sliding(5))] {
        let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
        let tiers = std::slice::from_ref(&tier);
        let fleet = Fleet::new(instances, Coordination::Lease, tiers, network).await;
        let instance = &fleet.instances[0];
        let mut first = Box::pin(instance.hit());
        assert!((&mut first).now_or_never().is_none(), "it waits");
        for _ in 0..3 {
            assert!(instance.hit().now_or_never().is_none(), "it waits for the next fetch");
        }
        assert!(first.await);
        assert!(instance.hit().await);
        assert_eq!(fleet.counted(tier), 2);
    }
}

/// Cancels some of three decisions, before, while and after the store replies.
#[tokio::test(start_paused = true)]
async fn what_is_granted_to_a_cancelled_decision_is_given_back() {
    for (millis, cancelled) in (0..4).flat_map(|millis| (0..4).map(move |cancelled| (millis, cancelled))) {
        let fleet = fleet().await;
        let instance = &fleet.instances[0];
        let mut admitted = 0;
        for _ in 0..10 {
            let hit = || {
                let instance = Arc::clone(instance);
                tokio::spawn(async move { instance.hit().await })
            };
            let decisions = [hit(), hit(), hit()];
            sleep(Duration::from_millis(millis)).await;
            decisions.iter().take(cancelled).for_each(JoinHandle::abort);
            for decision in decisions {
                admitted += u64::from(decision.await.is_ok_and(|admitted| admitted));
            }
        }
        assert_eq!(instance.failures(), (0, 0));
        instance.store.close().await;
        assert_eq!(fleet.counted(daily(LIMIT)), admitted, "{cancelled} cancelled after {millis} ms");
    }
}

/// A lone instance keeps a part of the limit for after a lull. When there are others, nobody holds it any more.
#[tokio::test(start_paused = true)]
async fn what_a_lone_instance_has_kept_is_returned_when_another_joins() {
    for wait in (0..6_000).step_by(250) {
        let tier = Tier { period: Period::from_secs(10), ..sliding(60) };
        let lease = rule(Coordination::Lease, std::slice::from_ref(&tier), OverLimitPolicy::Ignore);
        let mut fleet =
            Fleet::new(1, Coordination::Lease, std::slice::from_ref(&tier), Network::default()).await;
        assert!(fleet.instances[0].hit().await);
        sleep(Duration::from_millis(wait)).await;
        fleet.add(1, &lease, Network::default());
        sleep(Duration::from_millis(20)).await;
        let second = Arc::clone(&fleet.instances[1]);
        assert!(second.hit().await);
        // the first one learns of it, and its lease ends
        sleep(Duration::from_millis(8_500)).await;
        let mut admitted = 0;
        while second.hit().await {
            admitted += 1;
        }
        assert!(admitted >= 58, "{admitted} of 60, {wait} ms later");
    }
}
