//! Rejections that this instance makes by itself: when it asks the store whether hits were given back.

use std::time::Duration;

use tokio::time::sleep;
use weir::{limit::Coordination, store::simulated::Network};

use crate::fleet::{Fleet, daily};

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

/// Nobody else can have given anything back.
#[tokio::test(start_paused = true)]
async fn an_instance_that_is_alone_does_not_ask() {
    let fleet = fleet(1, Coordination::Interval).await;
    let sent = || fleet.instances[0].store.coordination_metrics().commands.get();
    let before = sent();
    for _ in 0..50 {
        assert!(!fleet.instances[0].hit().await);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(sent(), before);
}
