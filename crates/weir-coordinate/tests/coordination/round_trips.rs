//! A shared store that is far away: round trips of most of the budget of a decision, which is 15 ms.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::sleep;
use weir_coordinate::simulated::Network;
use weir_limit::{Algorithm, Bucket, Coordination, Period, Refill, Tier};

use crate::fleet::{Fleet, daily, sliding};

fn bucket(requests: u32, seconds: u64) -> Tier {
    let bucket = Bucket { burst: requests, refill: Refill::Continuous, strict: false };
    let period = Period::from_secs(seconds);
    Tier { algorithm: Algorithm::TokenBucket(bucket), period, ..daily(requests) }
}

/// Has two instances decide about `together` hits at a time, a millisecond apart, each in its turn, `pause` after those
/// before.
async fn offer(fleet: &Fleet, pause: Duration, together: u64) {
    for turn in 0..30 {
        sleep(pause).await;
        let hits = (0..together).map(async |i| {
            sleep(Duration::from_millis(i)).await;
            fleet.instances[turn % 2].hit().await
        });
        assert!(join_all(hits).await.into_iter().all(|is_admitted| is_admitted));
    }
}

/// Hits that the store has granted are used, although the instant of the grant is long past when the reply arrives.
#[tokio::test(start_paused = true)]
async fn what_a_late_reply_grants_is_used() {
    for mode in [Coordination::Lease, Coordination::Auto] {
        for tier in [daily(1_000), sliding(1_000), bucket(1_000, 86_400)] {
            // unless it is of a window, the second request of a turn has to wait for the next round trip
            let far = if tier.algorithm == Algorithm::FixedWindow { 2 } else { 1 };
            for (round_trip, most) in [(4, 5), (6, 5), (8, far), (12, far)] {
                for (pause, together) in [(700, 1), (700, most), (20, 1), (20, most)] {
                    let round_trip = Duration::from_millis(round_trip);
                    let network = Network { round_trip, jitter: Duration::ZERO, ..Network::default() };
                    let fleet = Fleet::new(2, mode, std::slice::from_ref(&tier), network).await;
                    offer(&fleet, Duration::from_millis(pause), together).await;
                    let failures: Vec<_> =
                        fleet.instances.iter().map(|instance| instance.failures()).collect();
                    let setup = format!("{mode:?}, {tier}, {round_trip:?}, {together} hits every {pause} ms");
                    assert_eq!(failures, [(0, 0); 2], "{setup}");
                    for instance in &fleet.instances {
                        instance.store.close().await;
                    }
                    assert_eq!(fleet.counted(tier.clone()), 30 * together, "{setup}");
                }
            }
        }
    }
}

/// The store grants in one window, and its reply arrives in the next one.
#[tokio::test(start_paused = true)]
async fn what_is_granted_at_the_end_of_a_window_is_used() {
    let second = Tier { period: Period::from_secs(1), ..daily(20) };
    for round_trip in [2, 8, 12] {
        for early in 0..=round_trip {
            let round_trip = Duration::from_millis(round_trip);
            let network = Network { round_trip, jitter: Duration::ZERO, ..Network::default() };
            let tiers = std::slice::from_ref(&second);
            let fleet = Fleet::new(2, Coordination::Lease, tiers, network).await;
            for turn in 0..10 {
                let now = fleet.clock.right();
                let left = Duration::from(now.window_end(second.period).since(now));
                sleep((left + Duration::from_secs(1)).saturating_sub(Duration::from_millis(early))).await;
                let instance = &fleet.instances[turn % 2];
                assert_eq!(join(instance.hit(), instance.hit()).await, (true, true));
            }
            let failures: Vec<_> = fleet.instances.iter().map(|instance| instance.failures()).collect();
            assert_eq!(failures, [(0, 0); 2], "{round_trip:?}, {early} ms before the end");
        }
    }
}

/// Where a lease would end before it can be used, or flow back into the bucket, nothing is leased ahead.
#[tokio::test(start_paused = true)]
async fn limits_of_short_periods_are_used_however_far_the_store_is() {
    let tier = |tier: Tier, millis| Tier { period: Period::from_millis(millis), ..tier };
    for (tier, round_trip, mode) in [
        (tier(bucket(100, 1), 100), 2, Coordination::Lease),
        (tier(bucket(100, 1), 100), 7, Coordination::Lease),
        (tier(bucket(100, 1), 100), 7, Coordination::Auto),
        (tier(sliding(100), 100), 7, Coordination::Lease),
        (tier(bucket(1_000, 1), 1_000), 8, Coordination::Lease),
        (tier(sliding(1_000), 1_000), 7, Coordination::Lease),
        (tier(sliding(1_000), 1_000), 8, Coordination::Lease),
    ] {
        // a hit of a sliding window counts as of its command, so the next one in its place comes a round trip later
        let under_load = if matches!(tier.algorithm, Algorithm::SlidingWindow) { 2_650 } else { 2_900 };
        for (rate, least) in [(700, 2_085), (2_000, under_load)] {
            let round_trip = Duration::from_millis(round_trip);
            let network = Network { round_trip, jitter: Duration::ZERO, ..Network::default() };
            let fleet = Fleet::new(3, mode, std::slice::from_ref(&tier), network).await;
            let outcomes = fleet.offer(rate, Duration::from_secs(3), &[1, 1, 1]).await;
            let admitted = outcomes.iter().filter(|outcome| outcome.admitted).count();
            let most = 3_000 + tier.capacity() as usize;
            assert!(
                (least..=most).contains(&admitted),
                "{admitted}, {tier}, {rate} a second, {round_trip:?}"
            );
            let fallback = fleet.instances.iter().map(|instance| instance.failures().0).sum::<u64>();
            assert!(
                fallback * 50 <= outcomes.len() as u64,
                "{fallback}, {tier}, {rate} a second, {round_trip:?}"
            );
        }
    }
}
