//! Decisions that are the store's, many at a time.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use weir::{
    limit::Coordination,
    store::simulated::{Condition, Network},
};

use crate::fleet::{Fleet, daily};

/// One instance, and the store has all the time that it wants.
async fn fleet(requests: u32) -> Fleet {
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    Fleet::new(1, Coordination::Strict, &[daily(requests)], network).await
}

impl Fleet {
    /// LimitChecks so many times at once.
    fn hit_at_once(&self, times: usize) -> JoinSet<bool> {
        let ask = || {
            let instance = Arc::clone(&self.instances[0]);
            async move { instance.hit().await }
        };
        (0..times).map(|_| ask()).collect()
    }

    /// Calls of the store, and commands in them.
    fn asked(&self) -> (u64, u64) {
        let figures = self.instances[0].store.coordination_metrics();
        (figures.calls.get(), figures.commands.get())
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_at_once_shares_calls_and_is_decided_one_by_one() {
    let fleet = fleet(1_000).await;
    let before = fleet.asked();
    let admitted = fleet.hit_at_once(1_500).join_all().await.into_iter().filter(|admitted| *admitted);
    assert_eq!(admitted.count(), 1_000);
    let after = fleet.asked();
    assert_eq!(after.1 - before.1, 1_500);
    // a call carries 512 at most
    assert_eq!(after.0 - before.0, 3);
}

/// As many calls as may be are under mode, and are not answered: what waits behind them is called off by whoever gives up, and
/// what has no room there is not asked at all.
#[tokio::test(start_paused = true)]
async fn what_nobody_waits_for_any_more_is_not_asked() {
    const LIMIT: u32 = 10_000;
    for (waiting, commands) in [(50, 4), (4_200, 5)] {
        let fleet = fleet(LIMIT).await;
        fleet.shared.set(Condition::Frozen);
        let before = fleet.asked();
        let mut asked = Vec::new();
        for _ in 0..4 {
            asked.push(fleet.hit_at_once(1));
            sleep(Duration::from_millis(1)).await;
        }
        asked.push(fleet.hit_at_once(waiting));
        for asked in asked {
            // by what the instance knows itself
            assert!(asked.join_all().await.into_iter().all(|admitted| admitted));
        }
        let all = 4 + waiting as u64;
        assert_eq!(fleet.instances[0].store.coordination_metrics().fallback.get(), all);
        // those four, and a word of what had no room
        assert_eq!(fleet.asked().1 - before.1, commands, "{waiting}");
        fleet.shared.set(Condition::Up);
        sleep(Duration::from_secs(3)).await;
        // those on their mode, and what was let through without being asked about
        assert_eq!(fleet.counted(daily(LIMIT)), all, "{waiting}");
    }
}
