//! Tests of the effect of each operation on the counters.

use weir_limit::{Algorithm, Hits, OverLimitPolicy, Period};
use weir_store::remote::Report;

use crate::ops::Op;
use crate::support::{CountedTarget, START, bucket, pass, tier};

const FIXED: Algorithm = Algorithm::FixedWindow;
const SLIDING: Algorithm = Algorithm::SlidingWindow;

#[tokio::test(start_paused = true)]
async fn added_hits_count_whether_or_not_they_fit() {
    let counted = CountedTarget::new(vec![tier(3, 10, FIXED)], OverLimitPolicy::Ignore);
    assert_eq!(counted.add(5).granted, 5);
    assert_eq!(counted.used(0), 5);
    assert_eq!(counted.take(1), 0);
    counted.add(-4);
    assert_eq!((counted.take(2), counted.take(1)), (2, 0));
    counted.add(-100);
    assert_eq!(counted.used(0), 0);
}

#[tokio::test(start_paused = true)]
async fn a_late_hit_counts_in_the_window_in_which_it_was_admitted() {
    let counted = CountedTarget::new(vec![tier(3, 10, FIXED)], OverLimitPolicy::Count);
    counted.add(1);
    pass(10_000).await;
    let late = counted.now(Op::Add { report: Report::of(START, 1) });
    assert_eq!(late.counters[0].used(), Hits(2));
    assert_eq!(late.counters[0].idle_at(), START.after(Period::from_secs(10)));
    assert_eq!(counted.used(0), 0);
}

#[tokio::test(start_paused = true)]
async fn takes_and_grants_use_the_window_of_the_stores_clock() {
    let counted = CountedTarget::new(vec![tier(1, 10, FIXED)], OverLimitPolicy::Ignore);
    let ahead = START.after(Period::from_secs(15));
    assert_eq!(counted.at(ahead, Op::Take { hits: 1 }).granted, 1);
    assert_eq!(counted.at(ahead, Op::Take { hits: 1 }).granted, 0);
    assert_eq!(
        counted.at(ahead, Op::Grant { report: None, least: 1, want: 1, hold: Period::default() }).granted,
        0
    );
    pass(10_000).await;
    assert_eq!(counted.at(START, Op::Take { hits: 1 }).granted, 1);
}

#[tokio::test(start_paused = true)]
async fn rejected_hits_count_only_for_rules_of_envoyproxy_ratelimit() {
    for (over_limit_policy, used) in [(OverLimitPolicy::Count, 7), (OverLimitPolicy::Ignore, 2)] {
        let counted = CountedTarget::new(vec![tier(3, 10, FIXED)], over_limit_policy);
        assert_eq!((counted.take(2), counted.take(5)), (2, 0));
        assert_eq!(counted.used(0), used);
    }
}

#[tokio::test(start_paused = true)]
async fn all_tiers_take_the_hits_or_none_does() {
    let tiers = vec![tier(9, 10, FIXED), tier(4, 60, SLIDING), tier(5, 1, bucket(6, false))];
    let counted = CountedTarget::new(tiers, OverLimitPolicy::Ignore);
    assert_eq!(counted.take(5), 0);
    assert_eq!((0..3).map(|i| counted.used(i)).sum::<u64>(), 0);
    assert_eq!(counted.take(3), 3);
    assert_eq!(counted.grant(1, 10, 0), 1);
    assert_eq!((counted.used(0), counted.used(1), counted.used(2)), (4, 4, 4));
}

#[tokio::test(start_paused = true)]
async fn a_grant_takes_as_many_hits_as_fit_or_none_if_fewer_than_the_least_fit() {
    for algorithm in [FIXED, SLIDING, bucket(10, false)] {
        let counted = CountedTarget::new(vec![tier(10, 10, algorithm)], OverLimitPolicy::Ignore);
        assert_eq!(counted.grant(1, 4, 100), 4);
        assert_eq!(counted.grant(7, 20, 100), 0);
        assert_eq!(counted.used(0), 4);
        assert_eq!(counted.grant(6, 20, 100), 6);
        assert_eq!(counted.grant(1, 1, 100), 0);
        counted.add(-3);
        assert_eq!(counted.grant(1, 20, 100), 3, "{algorithm:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sliding_window_counts_a_grant_from_the_end_of_its_hold() {
    let counted = CountedTarget::new(vec![tier(10, 10, SLIDING)], OverLimitPolicy::Ignore);
    assert_eq!(counted.take(5), 5);
    pass(9_500).await;
    // hits that count at the time of the grant still expire at their own time
    assert_eq!(counted.grant(1, 1, 1_000), 1);
    assert_eq!(counted.used(0), 6);
    pass(500).await;
    assert_eq!(counted.used(0), 1);
    pass(10_499).await;
    assert_eq!(counted.used(0), 1);
    pass(1).await;
    assert_eq!(counted.used(0), 0);
}

#[tokio::test(start_paused = true)]
async fn a_strict_bucket_restarts_its_refill_on_a_rejection() {
    let counted = CountedTarget::new(vec![tier(1, 10, bucket(1, true))], OverLimitPolicy::Ignore);
    assert_eq!(counted.take(1), 1);
    for _ in 0..5 {
        pass(6_000).await;
        assert_eq!(counted.take(1), 0);
    }
    pass(10_000).await;
    assert_eq!(counted.take(1), 1);
}

#[tokio::test(start_paused = true)]
async fn rules_in_both_formats_have_separate_counters() {
    let ours = CountedTarget::new(vec![tier(3, 10, FIXED)], OverLimitPolicy::Ignore);
    let compatible = crate::support::target(vec![tier(3, 10, FIXED)], OverLimitPolicy::Count);
    let theirs = CountedTarget { store: ours.store.clone(), target: compatible };
    assert_eq!((ours.take(3), theirs.take(2)), (3, 2));
    assert_eq!((ours.used(0), theirs.used(0)), (3, 2));
}
