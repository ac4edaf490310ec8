//! Decisions by `on_store_failure`, and what is recorded about them.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_coordinate::{
    CoordinationMetrics,
    simulated::{Condition, Network, SimulatedClock, SimulatedStore},
};
use weir_limit::{Basis, Coordination, OnStoreFailure, OverLimitPolicy, Period, Scope, Tier, Timestamp};
use weir_observe::{DecisionRecord, RecordedDecision, Source as _};
use weir_store::{Store as _, TakeOptions};

use crate::fleet::{EPOCH, Fleet, Instance, daily, rule};

const COORDINATED: [Coordination; 3] = [Coordination::Interval, Coordination::Lease, Coordination::Strict];

/// Starts one instance with a limit of 10.
async fn fleet(mode: Coordination, on_store_failure: OnStoreFailure) -> Fleet {
    let clock = SimulatedClock::new(EPOCH);
    let store = SimulatedStore::new(clock.clone(), 7);
    let mut rule = rule(mode, &[daily(10)], OverLimitPolicy::Ignore);
    rule.coordination.on_store_failure = Some(on_store_failure);
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    Fleet::start(1, rule, network, clock, store).await
}

impl Fleet {
    /// Puts the store into `condition`, and waits until it is unavailable, or available if that is what it becomes.
    async fn become_available(&self, condition: Condition) {
        self.shared.set(condition);
        while self.instances[0].store.is_store_unavailable() == (condition == Condition::Up) {
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn metrics(&self) -> &CoordinationMetrics {
        self.instances[0].store.coordination_metrics()
    }
}

impl Instance {
    /// Sends one hit. Returns what is recorded about it.
    async fn record(&self) -> RecordedDecision {
        let record = DecisionRecord::default();
        let now = self.now();
        self.with_check(async |check| {
            let options = TakeOptions { record: Some(&record), ..TakeOptions::default() };
            let decided = self.store.take_with(std::slice::from_ref(check), Scope::Descriptor, now, options);
            decided.await.expect("a coordinated store always decides");
        })
        .await;
        record.take()
    }
}

#[tokio::test(start_paused = true)]
async fn under_deny_everything_is_rejected_for_a_second_and_nothing_counts() {
    for mode in COORDINATED {
        let fleet = fleet(mode, OnStoreFailure::Deny).await;
        fleet.become_available(Condition::Down).await;
        let instance = &fleet.instances[0];
        let now = instance.now();
        for _ in 0..3 {
            let decided = instance
                .with_check(async |check| {
                    let decided = instance.store.take(std::slice::from_ref(check), Scope::Descriptor, now);
                    decided.await.expect("a coordinated store always decides")[0]
                })
                .await;
            assert_eq!((decided.over, decided.remaining, decided.reset), (true, 0, Period::from_secs(1)));
            assert_eq!(decided.basis, Basis::Fallback, "{mode:?}");
        }
        fleet.become_available(Condition::Up).await;
        instance.store.close().await;
        assert_eq!(fleet.counted(daily(10)), 0, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn under_allow_everything_is_admitted_and_counted() {
    for mode in COORDINATED {
        let fleet = fleet(mode, OnStoreFailure::Allow).await;
        fleet.become_available(Condition::Down).await;
        for _ in 0..30 {
            assert!(fleet.instances[0].hit().await, "{mode:?}");
        }
        fleet.become_available(Condition::Up).await;
        fleet.instances[0].store.close().await;
        assert_eq!(fleet.counted(daily(10)), 30, "{mode:?}");
    }
}

/// Giving back is never rejected, whatever decides.
#[tokio::test(start_paused = true)]
async fn hits_that_are_given_back_during_an_outage_are_reported() {
    for on_store_failure in [OnStoreFailure::Local, OnStoreFailure::Allow, OnStoreFailure::Deny] {
        for mode in COORDINATED {
            let fleet = fleet(mode, on_store_failure).await;
            let instance = &fleet.instances[0];
            for _ in 0..5 {
                assert!(instance.hit().await);
            }
            sleep(Duration::from_secs(12)).await;
            assert_eq!(fleet.counted(daily(10)), 5, "{mode:?}");
            fleet.become_available(Condition::Down).await;
            for _ in 0..2 {
                instance.give_back().await;
            }
            fleet.become_available(Condition::Up).await;
            instance.store.close().await;
            assert_eq!(fleet.counted(daily(10)), 3, "{on_store_failure:?}, {mode:?}");
        }
    }
}

/// The store carries the command out when it is up again, so the hits are not given back twice.
#[tokio::test(start_paused = true)]
async fn hits_whose_return_the_store_may_have_counted_are_not_given_back_again() {
    let fleet = fleet(Coordination::Strict, OnStoreFailure::Local).await;
    let instance = &fleet.instances[0];
    for _ in 0..5 {
        assert!(instance.hit().await);
    }
    fleet.shared.set(Condition::Frozen);
    instance.give_back().await;
    fleet.shared.set(Condition::Up);
    instance.store.close().await;
    assert_eq!((fleet.counted(daily(10)), fleet.metrics().hits.delivery_unknown.get()), (4, 0));
}

/// The store has counted it nevertheless, as its late reply shows.
#[tokio::test(start_paused = true)]
async fn a_late_hit_that_was_rejected_without_the_store_is_given_back() {
    let fleet = fleet(Coordination::Strict, OnStoreFailure::Deny).await;
    let instance = &fleet.instances[0];
    fleet.shared.set(Condition::Frozen);
    assert!(!instance.hit().await);
    fleet.shared.set(Condition::Up);
    sleep(Duration::from_secs(3)).await;
    instance.store.close().await;
    assert_eq!((fleet.counted(daily(10)), fleet.metrics().hits.delivery_unknown.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn decisions_wait_for_a_store_that_was_silent_for_less_than_half_a_second() {
    for mode in [Coordination::Lease, Coordination::Strict] {
        let fleet = fleet(mode, OnStoreFailure::Local).await;
        fleet.shared.set(Condition::Frozen);
        for decision in 1..=5 {
            let begun = Instant::now();
            assert!(fleet.instances[0].hit().await);
            let budget = Duration::from_millis(if decision <= 4 { 15 } else { 0 });
            assert_eq!(begun.elapsed(), budget, "{mode:?}, decision {decision}");
            if decision == 4 {
                sleep(Duration::from_millis(500)).await;
            }
        }
        assert_eq!(fleet.metrics().decisions.fallback.get(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_names_the_mode_the_wait_and_the_fallback() {
    for (mode, name) in COORDINATED.into_iter().zip(["interval", "lease", "strict"]) {
        let fleet = fleet(mode, OnStoreFailure::Local).await;
        let instance = &fleet.instances[0];
        let recorded = instance.record().await;
        assert_eq!((&recorded.modes[..], recorded.fallback), (&[name][..], false));
        let waits: Vec<_> = recorded.waits.iter().map(|wait| (wait.commands, wait.error)).collect();
        let waited = if mode == Coordination::Interval { vec![] } else { vec![(1, None)] };
        assert_eq!(waits, waited, "{name}");

        if mode == Coordination::Strict {
            fleet.shared.set(Condition::Frozen);
            let recorded = instance.record().await;
            assert!(recorded.fallback);
            assert_eq!(
                recorded.waits[0].error,
                Some("no reply within WEIR_DECISION_BUDGET or the timeout of the caller")
            );
        }
        fleet.become_available(Condition::Down).await;
        while !instance.record().await.fallback {}
        let recorded = instance.record().await;
        assert_eq!((&recorded.modes[..], recorded.fallback), (&[name][..], true));
        assert!(recorded.waits.is_empty(), "{name}");
    }
}

/// The hits that were given back in each window are reported by the command that requests the lease.
#[tokio::test(start_paused = true)]
async fn a_fetch_is_one_command_whatever_it_reports() {
    let second = Tier { period: Period::from_secs(1), ..daily(10) };
    let fleet = Fleet::new(1, Coordination::Lease, &[second, daily(100)], Network::default()).await;
    let instance = &fleet.instances[0];
    assert_eq!(instance.record().await.waits.len(), 1);
    let phase = |now: Timestamp| now.as_nanos() % 1_000_000_000;
    while phase(instance.now()) < 980_000_000 {
        sleep(Duration::from_millis(1)).await;
    }
    instance.give_back().await;
    while phase(instance.now()) >= 980_000_000 {
        sleep(Duration::from_millis(1)).await;
    }
    instance.give_back().await;
    let waits: Vec<_> =
        instance.record().await.waits.iter().map(|wait| (wait.commands, wait.error)).collect();
    assert_eq!(waits, [(1, None)]);
}

#[tokio::test(start_paused = true)]
async fn the_metrics_show_each_count_under_its_name() {
    let fleet = fleet(Coordination::Strict, OnStoreFailure::Local).await;
    let before = fleet.metrics().store.calls.get();
    assert!(fleet.instances[0].hit().await);
    fleet.shared.set(Condition::Frozen);
    assert!(fleet.instances[0].hit().await);
    let metrics = fleet.metrics().metrics();
    let shown = |name: &str| -> Vec<u64> {
        metrics.iter().filter(|metric| metric.name == name).map(|metric| metric.value).collect()
    };
    // local, split, leased, denied, waited, fallback
    assert_eq!(shown("weir.decisions"), [0, 0, 0, 0, 1, 1]);
    assert_eq!(shown("weir.store.calls"), [before + 2]);
    assert_eq!(shown("weir.store.failures"), [0]);
    // its reply may still come
    assert_eq!(shown("weir.hits.delivery_unknown"), [0]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_counts_its_counters() {
    let fleet = Fleet::new(1, Coordination::Strict, &[daily(10)], Network::default()).await;
    let instance = &fleet.instances[0];
    assert_eq!(instance.store.counters(), 0);
    assert!(instance.hit().await);
    assert_eq!(instance.store.counters(), 1);
}

/// It is one of this instance alone.
#[tokio::test(start_paused = true)]
async fn a_decision_of_the_fallback_knows_the_leased_hits_that_were_used_meanwhile() {
    // ten hits are leased ahead of the first one
    let fleet = Fleet::new(3, Coordination::Lease, &[daily(3_000)], Network::default()).await;
    let instance = &fleet.instances[0];
    assert!(instance.hit().await);
    fleet.become_available(Condition::Down).await;
    // each counts for all three
    assert!(instance.hits(50).await);
    for _ in 0..10 {
        assert!(instance.hit().await);
    }
    let rules = instance.rules_with(rule(Coordination::Lease, &[daily(3_000)], OverLimitPolicy::Ignore));
    let decision = instance.decide(&rules, Scope::Descriptor, false).await;
    let used = 1 + 3 * 50 + 10 + 3;
    assert_eq!(decision.remaining, (3_000 - used) / 3);
    let metrics = fleet.metrics();
    assert_eq!((metrics.decisions.leased.get(), metrics.decisions.fallback.get()), (10, 2));
}

/// Its caller has the answer of the fallback when the store rejects the command.
#[tokio::test(start_paused = true)]
async fn a_hit_of_the_fallback_is_reported_when_its_command_was_not_carried_out() {
    for mode in [Coordination::Strict, Coordination::Lease] {
        let fleet = fleet(mode, OnStoreFailure::Allow).await;
        fleet.shared.set(Condition::Frozen);
        assert!(fleet.instances[0].hit().await, "the fallback admits it");
        fleet.shared.set(Condition::Rejecting);
        sleep(Duration::from_millis(100)).await;
        assert_eq!(fleet.counted(daily(10)), 0, "{mode:?}");
        fleet.shared.set(Condition::Up);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(fleet.counted(daily(10)), 1, "{mode:?}");
        assert_eq!(fleet.metrics().hits.delivery_unknown.get(), 0, "{mode:?}");
    }
}
