//! Limits that come with requests, beside the limit of the rule or of other requests on the same counter.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use weir_coordinate::{Coordinated, CoordinationSettings};
use weir_limit::{
    Algorithm, Bucket, Coordination, OverLimitPolicy, Period, Refill, RuntimeLimit, Scope, Tier,
};

use crate::{
    fleet::{daily, rule, sliding},
    pair::{Ask, Pair},
};

fn own(tier: Tier) -> RuntimeLimit {
    RuntimeLimit::new([tier].into(), OverLimitPolicy::Ignore).expect("it is valid")
}

impl Pair {
    /// Sends a hit of `large` with this limit to instance `i`. Returns whether it was admitted.
    async fn hit_under(&self, i: usize, tier: &Tier) -> bool {
        let ask = Ask { own: Some(own(tier.clone())), ..Ask::hit("large") };
        !self.ask(Scope::Descriptor, i, &[ask]).await[0].over
    }
}

/// `auto` counts the limit of the rule asynchronously, since it is large. That would be too inexact for a small one.
#[tokio::test(start_paused = true)]
async fn a_small_limit_is_exact_on_the_counter_of_a_large_one() {
    let settings =
        CoordinationSettings { coordination: Coordination::Auto, ..CoordinationSettings::default() };
    let of = |requests| rule(Coordination::Auto, &[daily(requests)], OverLimitPolicy::Ignore);
    let pair = Pair::start(of(100_000), of(1), settings).await;
    for pause in [0, 2_000] {
        for i in 0..2 {
            assert!(pair.hit(i, "large").await);
            sleep(Duration::from_millis(pause)).await;
        }
    }
    let small = daily(10);
    let hits = (0..24).map(|i| pair.hit_under(i % 2, &small));
    let admitted = join_all(hits).await.into_iter().filter(|admitted| *admitted).count();
    assert_eq!(admitted, 6, "the rule's hits count");
    let begun = Instant::now();
    assert!(pair.hit(0, "large").await);
    assert_eq!(begun.elapsed(), Duration::ZERO, "that of the rule is as before");
}

/// Instances that reject hits ask less and less often whether some were given back.
#[tokio::test(start_paused = true)]
async fn what_is_given_back_is_found_soon_after_hours_of_overload() {
    let pair = Pair::new(Coordination::Lease, Coordination::Lease).await;
    let minute = Tier { period: Period::from_secs(60), ..daily(20) };
    let until_next = async |early: u64| {
        let now = pair.clock.right();
        sleep(Duration::from(now.window_end(minute.period).since(now)) + Duration::from_millis(early)).await;
    };
    for _ in 0..60 {
        until_next(0).await;
        for hit in 0..100 {
            assert_eq!(pair.hit_under(0, &minute).await, hit < 20);
            sleep(Duration::from_millis(if hit < 20 { 0 } else { 500 })).await;
        }
    }
    until_next(0).await;
    for hit in 0..25 {
        assert_eq!(pair.hit_under(0, &minute).await, hit < 20);
    }
    let back = Ask { gives_back: true, hits: 5, own: Some(own(minute.clone())), ..Ask::hit("large") };
    pair.ask(Scope::Descriptor, 1, &[back]).await;
    let begun = Instant::now();
    while !pair.hit_under(0, &minute).await {
        sleep(Duration::from_millis(20)).await;
        assert!(begun.elapsed() < Duration::from_secs(2), "they are not found");
    }
}

/// Under overload no instance asks for every single token of a bucket. That is no reason to reject what a larger bucket
/// admits.
#[tokio::test(start_paused = true)]
async fn a_pause_of_the_rule_does_not_reject_hits_of_another_limit() {
    let bucket = |burst| {
        let bucket = Bucket { burst, refill: Refill::Continuous, strict: false };
        Tier::new(20, Period::from_secs(10), Algorithm::TokenBucket(bucket))
    };
    let of = |tier| rule(Coordination::Lease, &[tier], OverLimitPolicy::Ignore);
    let pair = Pair::with(of(bucket(20)), of(daily(1))).await;
    let larger = bucket(10_000);
    let (mut admitted, mut own) = (0, 0);
    for turn in 0..2_000 {
        admitted += u32::from(pair.hit(turn % 2, "large").await);
        if turn % 100 == 99 {
            own += u32::from(pair.hit_under(turn % 2, &larger).await);
        }
        sleep(Duration::from_millis(5)).await;
    }
    assert!(admitted <= 40, "{admitted}");
    assert_eq!(own, 20);
}

/// Decisions of the rule wait for leases all the time, which are on their way while a decision in order waits.
#[tokio::test(start_paused = true)]
async fn a_decision_in_order_delays_those_of_the_rule_no_longer_than_the_budget() {
    for (tier, at_once) in [(sliding(10_000), 10), (sliding(10_000), 200), (daily(10_000), 200)] {
        let of = |tier| rule(Coordination::Lease, &[tier], OverLimitPolicy::Ignore);
        let pair = Arc::new(Pair::with(of(tier.clone()), of(daily(1))).await);
        let larger = Tier { requests: 20_000, ..tier.clone() };
        let mut requests = JoinSet::new();
        for i in 0..2_000 {
            let (pair, larger) = (Arc::clone(&pair), larger.clone());
            requests.spawn(async move {
                if i % 20 == 19 {
                    pair.hit_under(i % 2, &larger).await
                } else {
                    pair.hit(i % 2, "large").await
                }
            });
            if i % at_once == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }
        assert!(requests.join_all().await.into_iter().all(|is_admitted| is_admitted));
        let metrics = pair.stores.iter().map(Coordinated::coordination_metrics);
        let fallback: Vec<u64> = metrics.map(|metrics| metrics.decisions.fallback.get()).collect();
        assert_eq!(fallback, [0, 0], "{tier}, {at_once} at once");
    }
}
