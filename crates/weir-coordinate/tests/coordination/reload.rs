//! Reloads of the rules while requests are decided.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;
use weir_coordinate::simulated::Network;
use weir_limit::{
    Algorithm, Bucket, Coordination, OverLimitPolicy, Period, Refill, Rule, RuleCoordination, Scope, Tier,
};

use crate::fleet::{Fleet, daily, rule, sliding};

fn bucket(requests: u32) -> Tier {
    let bucket = Bucket { burst: requests, refill: Refill::Continuous, strict: false };
    Tier { algorithm: Algorithm::TokenBucket(bucket), ..daily(requests) }
}

/// Requests that have come before a reload may be decided after it, beside those that come later.
#[tokio::test(start_paused = true)]
async fn requests_from_before_a_reload_share_the_counter_with_later_ones() {
    for mode in [Coordination::Lease, Coordination::Auto, Coordination::Strict, Coordination::Interval] {
        for limit in [daily, sliding, bucket] {
            let network = Network {
                round_trip: Duration::from_millis(4),
                jitter: Duration::ZERO,
                ..Network::default()
            };
            let fleet = Fleet::new(2, mode, &[limit(900)], network).await;
            let rules = |requests| {
                let rule = rule(mode, &[limit(requests)], OverLimitPolicy::Ignore);
                fleet.instances.iter().map(|instance| instance.rules_with(rule.clone())).collect::<Vec<_>>()
            };
            let mut before = rules(901);
            for (pause, requests) in [(0, 902), (3, 903), (700, 904), (0, 905), (50, 906)] {
                let after = rules(requests);
                let hits = (0..40).map(async |i| {
                    sleep(Duration::from_millis(pause) + Duration::from_micros(200 * i as u64)).await;
                    let rules = if i % 4 < 2 || i < 8 { &before } else { &after };
                    fleet.instances[i % 2].hit_under(&rules[i % 2], Scope::Descriptor).await
                });
                assert!(join_all(hits).await.into_iter().all(|is_admitted| is_admitted));
                before = after;
            }
            let failures: Vec<_> = fleet.instances.iter().map(|instance| instance.failures()).collect();
            assert_eq!(failures, [(0, 0); 2], "{mode:?}, {}", limit(900));
            for instance in &fleet.instances {
                instance.store.close().await;
            }
            assert_eq!(fleet.counted(limit(900)), 200, "{mode:?}, {}", limit(900));
        }
    }
}

/// Until the next reply, the flushes of a large limit would be much too late for a small one.
#[tokio::test(start_paused = true)]
async fn a_lowered_limit_is_reported_as_early_as_it_needs() {
    let minute = |requests| Tier { period: Period::from_secs(60), ..daily(requests) };
    let fleet = Fleet::new(10, Coordination::Interval, &[minute(1_000_000)], Network::default()).await;
    let offer = async |limit, times: usize, pause| {
        let rule = rule(Coordination::Interval, &[minute(limit)], OverLimitPolicy::Ignore);
        let rules: Vec<_> =
            fleet.instances.iter().map(|instance| instance.rules_with(rule.clone())).collect();
        let mut admitted = 0;
        for i in 0..times {
            let instance = &fleet.instances[i % 10];
            admitted += u64::from(instance.hit_under(&rules[i % 10], Scope::Descriptor).await);
            sleep(Duration::from_millis(pause)).await;
        }
        admitted
    };
    let now = fleet.clock.right();
    sleep(now.window_end(Period::from_secs(60)).since(now).into()).await;
    assert_eq!(offer(1_000_000, 300, 20).await, 300);
    let admitted = offer(500, 1_000, 1).await;
    assert!((200..=260).contains(&admitted), "{admitted} of 200");
}

#[tokio::test(start_paused = true)]
async fn a_reload_changes_the_sync_interval_of_counters_that_exist() {
    let limit = daily(100);
    let fleet = Fleet::new(2, Coordination::Interval, std::slice::from_ref(&limit), Network::default()).await;
    let instance = &fleet.instances[0];
    let rules = |interval| {
        let rule = rule(Coordination::Interval, &[daily(100)], OverLimitPolicy::Ignore);
        let coordination = RuleCoordination { sync_interval: Some(interval), ..rule.coordination };
        instance.rules_with(Rule { coordination, ..rule })
    };
    assert!(instance.hit().await);
    sleep(Duration::from_secs(2)).await;
    let mut counted = fleet.counted(limit.clone());
    assert_eq!(counted, 1);
    for (interval, wait, is_reported) in
        [(60_000, 20_000, false), (1_000, 61_000, true), (1_000, 1_100, true)]
    {
        let rules = rules(Period::from_millis(interval));
        assert!(instance.hit_under(&rules, Scope::Descriptor).await);
        sleep(Duration::from_millis(wait)).await;
        let before = std::mem::replace(&mut counted, fleet.counted(limit.clone()));
        assert_eq!(counted > before, is_reported, "{interval} ms");
    }
    assert_eq!(counted, 4);
}
