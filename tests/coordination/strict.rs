//! Concurrent decisions in `strict` mode.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use weir::{
    limit::Coordination,
    store::simulated::{Condition, Network},
};

use crate::fleet::{Fleet, daily};

/// Starts one instance whose network drops no call.
async fn fleet(requests: u32) -> Fleet {
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    Fleet::new(1, Coordination::Strict, &[daily(requests)], network).await
}

impl Fleet {
    /// Sends `times` hits at once.
    fn hit_at_once(&self, times: usize) -> JoinSet<bool> {
        let hit = || {
            let instance = Arc::clone(&self.instances[0]);
            async move { instance.hit().await }
        };
        (0..times).map(|_| hit()).collect()
    }

    /// Returns the number of calls and of the commands in them.
    fn calls_and_commands(&self) -> (u64, u64) {
        let metrics = self.instances[0].store.coordination_metrics();
        (metrics.calls.get(), metrics.commands.get())
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_decisions_share_calls() {
    let fleet = fleet(1_000).await;
    let before = fleet.calls_and_commands();
    let admitted = fleet.hit_at_once(1_500).join_all().await.into_iter().filter(|admitted| *admitted);
    assert_eq!(admitted.count(), 1_000);
    let after = fleet.calls_and_commands();
    assert_eq!(after.1 - before.1, 1_500);
    // a call holds 512 commands at most
    assert_eq!(after.0 - before.0, 3);
}

/// All calls are in flight without a reply. Commands that wait behind them are cancelled when their budget runs out; commands
/// beyond the queue's bound are not queued.
#[tokio::test(start_paused = true)]
async fn cancelled_commands_are_not_sent() {
    const LIMIT: u32 = 10_000;
    for (waiting, commands) in [(50, 4), (4_200, 5)] {
        let fleet = fleet(LIMIT).await;
        fleet.shared.set(Condition::Frozen);
        let before = fleet.calls_and_commands();
        let mut hits = Vec::new();
        for _ in 0..4 {
            hits.push(fleet.hit_at_once(1));
            sleep(Duration::from_millis(1)).await;
        }
        hits.push(fleet.hit_at_once(waiting));
        for hits in hits {
            // the fallback admits them
            assert!(hits.join_all().await.into_iter().all(|admitted| admitted));
        }
        let all = 4 + waiting as u64;
        assert_eq!(fleet.instances[0].store.coordination_metrics().fallback.get(), all);
        // the four calls in flight, and a flush of the hits that did not fit in the queue
        assert_eq!(fleet.calls_and_commands().1 - before.1, commands, "{waiting}");
        fleet.shared.set(Condition::Up);
        sleep(Duration::from_secs(3)).await;
        // the hits in flight, and those that the fallback admitted
        assert_eq!(fleet.counted(daily(LIMIT)), all, "{waiting}");
    }
}
