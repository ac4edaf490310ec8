//! Reservations: hits that a caller takes in advance.

use std::time::Duration;

use futures_util::{FutureExt as _, future::join};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};
use weir_coordinate::simulated::{Condition, Network, SimulatedClock, SimulatedStore};
use weir_limit::{
    Coordination, Hits, OnStoreFailure, OverLimitPolicy, Period, Reservation, ReservationRequest, Rule,
};
use weir_store::Store as _;

use crate::fleet::{EPOCH, Fleet, Instance, daily, rule, sliding};

const COORDINATED: [Coordination; 3] = [Coordination::Interval, Coordination::Lease, Coordination::Strict];

impl Instance {
    async fn reserve(&self, least: u64, want: u64) -> Reservation {
        let request =
            ReservationRequest { least: Hits(least), want: Hits(want), hold: Period::from_secs(10) };
        let now = self.now();
        self.with_check(async |check| self.store.reserve(check, request, now).await.expect("it decides"))
            .await
    }

    async fn release(&self, reservation: Reservation, unused: u64) {
        let now = self.now();
        self.with_check(async |check| {
            self.store.release(check, reservation, Hits(unused), now).await.expect("it is released");
        })
        .await;
    }
}

/// Starts two instances with a limit of 100 and this `on_store_failure`.
async fn failing(on_store_failure: OnStoreFailure) -> Fleet {
    let clock = SimulatedClock::new(EPOCH);
    let store = SimulatedStore::new(clock.clone(), 7);
    let mut rule: Rule = rule(Coordination::Strict, &[daily(100)], OverLimitPolicy::Ignore);
    rule.coordination.on_store_failure = Some(on_store_failure);
    let network = Network { timeout: Duration::from_secs(10), ..Network::default() };
    Fleet::start(2, rule, network, clock, store).await
}

#[tokio::test(start_paused = true)]
async fn instances_together_reserve_no_more_than_the_limit() {
    for mode in COORDINATED {
        for tier in [daily(100), sliding(100)] {
            let fleet = Fleet::new(3, mode, &[tier], Network::default()).await;
            let mut reserved = 0;
            for turn in 0..9 {
                reserved += fleet.instances[turn % 3].reserve(1, 15).await.hits.0;
            }
            assert_eq!(reserved, 100, "{mode:?}");
            let rejected = fleet.instances[0].reserve(1, 15).await;
            assert!(rejected.hits == Hits(0) && rejected.decision.over, "{mode:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn local_reservations_are_made_in_memory() {
    let fleet = Fleet::new(2, Coordination::Local, &[daily(100)], Network::default()).await;
    for instance in &fleet.instances {
        let all = instance.reserve(1, 200).await;
        assert_eq!(all.hits, Hits(100));
        assert_eq!(instance.reserve(1, 200).await.hits, Hits(0));
        instance.release(all, 30).await;
        assert_eq!(instance.reserve(1, 200).await.hits, Hits(30));
        assert_eq!(instance.store.coordination_metrics().store.calls.get(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn released_hits_are_available_to_every_instance() {
    for mode in COORDINATED {
        for tier in [daily(100), sliding(100)] {
            let fleet = Fleet::new(2, mode, &[tier], Network::default()).await;
            let all = fleet.instances[0].reserve(1, 100).await;
            assert_eq!(fleet.instances[1].reserve(1, 100).await.hits, Hits(0));
            fleet.instances[0].release(all, 40).await;
            // the next flush carries the release
            sleep(Duration::from_millis(1_100)).await;
            assert_eq!(fleet.instances[1].reserve(1, 100).await.hits, Hits(40), "{mode:?}");
        }
    }
}

/// Whether its reply is still on the way, or has come and nobody has looked.
#[tokio::test(start_paused = true)]
async fn a_reservation_whose_caller_leaves_is_given_back() {
    for mode in [Coordination::Lease, Coordination::Strict] {
        for until_dropped in [Duration::ZERO, Duration::from_millis(10)] {
            let fleet = Fleet::new(2, mode, &[daily(100)], Network::default()).await;
            let mut leaving = Box::pin(fleet.instances[0].reserve(1, 100));
            assert!((&mut leaving).now_or_never().is_none(), "it waits");
            // until it is sent
            sleep(Duration::from_micros(100)).await;
            sleep(until_dropped).await;
            assert_eq!(fleet.counted(daily(100)), if until_dropped.is_zero() { 0 } else { 100 });
            drop(leaving);
            sleep(Duration::from_secs(2)).await;
            assert_eq!(fleet.counted(daily(100)), 0, "{mode:?} after {until_dropped:?}");
            assert_eq!(fleet.instances[1].reserve(1, 100).await.hits, Hits(100));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_waits_no_longer_than_the_budget() {
    let fleet = failing(OnStoreFailure::Local).await;
    fleet.shared.set(Condition::Frozen);
    for _ in 0..20 {
        let begun = Instant::now();
        let _ = fleet.instances[0].reserve(1, 10).await;
        assert!(begun.elapsed() <= Duration::from_millis(16), "{:?}", begun.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_down_on_store_failure_decides() {
    let cases =
        [(OnStoreFailure::Local, [50, 0]), (OnStoreFailure::Allow, [80, 80]), (OnStoreFailure::Deny, [0, 0])];
    for (on_store_failure, expected) in cases {
        let fleet = failing(on_store_failure).await;
        fleet.shared.set(Condition::Down);
        for instance in &fleet.instances {
            for expected in expected {
                let reservation = instance.reserve(1, 80).await;
                assert_eq!(reservation.hits, Hits(expected), "{on_store_failure:?}");
                assert_eq!(reservation.decision.over, expected == 0);
            }
        }
    }
}

/// Hits that are reserved and released while the store is down are reported when it is up again.
#[tokio::test(start_paused = true)]
async fn hits_reserved_during_an_outage_are_reported_once() {
    let fleet = failing(OnStoreFailure::Local).await;
    fleet.shared.set(Condition::Down);
    let instance = &fleet.instances[0];
    let first = instance.reserve(1, 50).await;
    assert_eq!(first.hits, Hits(50));
    instance.release(first, 20).await;
    assert_eq!(instance.reserve(1, 50).await.hits, Hits(20), "released hits are available again");
    fleet.shared.set(Condition::Up);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(fleet.counted(daily(100)), 50);
    assert_eq!(fleet.instances[1].reserve(1, 100).await.hits, Hits(50));
}

#[tokio::test(start_paused = true)]
async fn reserved_hits_may_be_used_within_the_hold_and_their_fixed_window() {
    for (tier, held) in [(daily(100), 4), (sliding(100), 10)] {
        let fleet = Fleet::new(1, Coordination::Strict, &[tier], Network::default()).await;
        let now = fleet.clock.right();
        let left = Duration::from(now.window_end(Period::from_secs(86_400)).since(now));
        sleep(left.saturating_sub(Duration::from_secs(4))).await;
        let reserved = fleet.instances[0].reserve(1, 10).await;
        let held_for = reserved.until.since(fleet.clock.right()).as_nanos();
        assert!(held_for.abs_diff(held * 1_000_000_000) <= 5_000_000, "{held_for} instead of {held} s");
    }
}

#[tokio::test(start_paused = true)]
async fn hits_that_the_store_may_have_granted_without_a_reply_are_counted() {
    for condition in [Condition::Frozen, Condition::Down] {
        let fleet = failing(OnStoreFailure::Local).await;
        fleet.shared.set(condition);
        let instance = &fleet.instances[0];
        assert_eq!(instance.reserve(1, 30).await.hits, Hits(30));
        assert_eq!(instance.store.coordination_metrics().hits.delivery_unknown.get(), 0);
        fleet.shared.set(Condition::Up);
        instance.store.close().await;
        // by the store, or by a report
        assert_eq!(fleet.counted(daily(100)), 30, "{condition:?}");
    }
}

/// The connection breaks while the command is on its way.
#[tokio::test(start_paused = true)]
async fn hits_that_the_store_may_have_granted_to_nobody_are_in_the_metric() {
    let fleet = failing(OnStoreFailure::Local).await;
    let instance = &fleet.instances[0];
    let sent = || instance.store.coordination_metrics().store.commands.get();
    let before = sent();
    let break_down = async {
        while sent() == before {
            yield_now().await;
        }
        fleet.shared.set(Condition::Down);
    };
    let (reservation, ()) = join(instance.reserve(1, 30), break_down).await;
    assert_eq!(reservation.hits, Hits(30));
    assert_eq!(instance.store.coordination_metrics().hits.delivery_unknown.get(), 30);
}

#[tokio::test(start_paused = true)]
async fn what_on_store_failure_reserves_is_reported() {
    for (on_store_failure, reserved) in [(OnStoreFailure::Allow, 160), (OnStoreFailure::Deny, 0)] {
        let fleet = failing(on_store_failure).await;
        fleet.shared.set(Condition::Down);
        let instance = &fleet.instances[0];
        for _ in 0..2 {
            let reservation = instance.reserve(1, 80).await;
            if reserved == 0 {
                assert_eq!(reservation.decision.reset, Period::from_secs(1));
            }
        }
        fleet.shared.set(Condition::Up);
        instance.store.close().await;
        assert_eq!(fleet.counted(daily(100)), reserved, "{on_store_failure:?}");
    }
}

/// A reservation that is rejected changes nothing: what is used of a lease afterwards counts for the next one.
#[tokio::test(start_paused = true)]
async fn a_rejected_reservation_leaves_later_ones_what_leases_leave() {
    for is_tried in [false, true] {
        let fleet = Fleet::new(2, Coordination::Lease, &[daily(10_000)], Network::default()).await;
        let instance = &fleet.instances[0];
        // leases more than one hit
        assert!(instance.hit().await);
        fleet.shared.set(Condition::Down);
        while !instance.store.is_store_unavailable() {
            sleep(Duration::from_millis(1)).await;
        }
        if is_tried {
            assert_eq!(instance.reserve(10_000, 10_000).await.hits, Hits(0));
        }
        for _ in 0..20 {
            assert!(instance.hit().await);
        }
        assert_eq!(instance.store.coordination_metrics().decisions.leased.get(), 20);
        assert_eq!(instance.reserve(1, 10_000).await.hits, Hits((10_000 - 21) / 2), "{is_tried}");
    }
}
