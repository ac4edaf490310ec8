//! Tests of reports: what they do to a counter that nobody else has changed, and to one that somebody has.

use weir::{
    clock::Clock as _,
    limit::{
        Algorithm, Hits, OverLimitPolicy, Period, Timestamp,
        algorithm::{CountChange, CounterState},
    },
    store::remote::{ExactState, Replacement, Reply, Report},
};

use crate::ops::Op;
use crate::support::{CountedTarget, bucket, pass, tier};

const FIXED: Algorithm = Algorithm::FixedWindow;
const SLIDING: Algorithm = Algorithm::SlidingWindow;

impl CountedTarget {
    fn time(&self) -> Timestamp {
        self.store.clock().now()
    }

    fn report(&self, report: Report) -> Reply {
        self.now(Op::Add { report })
    }

    /// Returns a report of `hits` now, whose states are those of `known` and the hits.
    fn replacing(&self, known: &Reply, hits: i64) -> Report {
        let now = self.time();
        let change = CountChange::of(hits);
        let states = self.target.tiers.iter().zip(&known.counters).map(|(tier, state)| {
            let mut state = state.clone();
            state.add(tier, now, change, now);
            state
        });
        let is_own = known.counters.iter().all(|state| state.used() == Hits(0));
        let exact = states.zip(&self.target.tiers).enumerate().map(|(i, (state, tier))| {
            let flows = tier.algorithm != FIXED;
            flows.then(|| ExactState { version: known.version(i), is_own, state })
        });
        Report { replaces: Some(Box::new(Replacement(exact.collect()))), ..Report::of(now, hits) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_replaces_one_that_nobody_else_has_changed() {
    for algorithm in [SLIDING, bucket(10, false)] {
        let counted =
            CountedTarget::new(vec![tier(10, 60, algorithm), tier(50, 60, FIXED)], OverLimitPolicy::Ignore);
        let first = counted.now(Op::Take { hits: 2 });
        assert!(first.version(0) > 0 && first.adopted.is_empty());
        // reading and rejecting change nothing
        counted.now(Op::Take { hits: 0 });
        counted.now(Op::Take { hits: 99 });
        let adopted = counted.report(counted.replacing(&first, 3));
        assert!(adopted.adopted.contains(0) && adopted.version(0) != first.version(0), "{adopted:?}");
        assert_eq!((counted.used(0), counted.used(1)), (5, 5));
        // the first state is no longer that of the store, so the hits are added
        let added = counted.report(counted.replacing(&first, 1));
        assert!(added.adopted.is_empty() && added.version(0) != adopted.version(0), "{added:?}");
        assert_eq!((counted.used(0), counted.used(1)), (6, 6));
        // the store has lost everything
        counted.store.flush();
        assert!(counted.report(counted.replacing(&added, 1)).adopted.contains(0));
        assert_eq!((counted.used(0), counted.used(1)), (7, 1));
    }
}

/// A bucket refills between two reports. What flowed in while the second instance took its hits is what the first one
/// has taken.
#[tokio::test(start_paused = true)]
async fn a_refilled_bucket_is_not_replaced_by_hits_of_the_same_time() {
    let counted = CountedTarget::new(vec![tier(10, 1, bucket(10, false))], OverLimitPolicy::Ignore);
    let since = counted.time();
    let unused = counted.now(Op::Take { hits: 0 });
    // two instances have taken ten hits each; the bucket has refilled when the first one reports
    let [first, second] = [0, 0].map(|_| Report { since, ..counted.replacing(&unused, 10) });
    pass(1_000).await;
    assert!(counted.report(first).adopted.contains(0));
    pass(100).await;
    let at = counted.time();
    assert!(counted.report(Report { at, ..second }).adopted.is_empty());
    assert_eq!(counted.used(0), 10);
    // nothing was counted since the hits of the next report began
    pass(1_100).await;
    let since = counted.time();
    pass(100).await;
    assert!(counted.report(Report { since, ..counted.replacing(&unused, 1) }).adopted.contains(0));
    assert_eq!(counted.used(0), 1);
    // a bucket that is forgotten may have been counted in a little while ago
    pass(100_000).await;
    counted.store.flush();
    let since = Timestamp::from_nanos(counted.time().as_nanos() - 2_000_000_001);
    assert!(counted.report(Report { since, ..counted.replacing(&unused, 1) }).adopted.is_empty());
}

/// What another instance has given back must not count again because an instance still knows it.
#[tokio::test(start_paused = true)]
async fn a_state_with_hits_of_others_replaces_no_counter_that_counts_nothing() {
    for algorithm in [SLIDING, bucket(10, false)] {
        let counted = CountedTarget::new(vec![tier(10, 60, algorithm)], OverLimitPolicy::Ignore);
        let known = counted.now(Op::Take { hits: 4 });
        counted.report(Report::of(counted.time(), -4));
        assert!(counted.report(counted.replacing(&known, 1)).adopted.is_empty());
        assert_eq!(counted.used(0), 1, "{algorithm:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn fixed_windows_have_no_version() {
    let counted = CountedTarget::new(vec![tier(10, 60, FIXED)], OverLimitPolicy::Ignore);
    let first = counted.now(Op::Take { hits: 2 });
    let added = counted.report(counted.replacing(&first, 3));
    assert_eq!((added.version(0), added.adopted.is_empty(), counted.used(0)), (0, true, 5));
}

#[tokio::test(start_paused = true)]
async fn a_change_stops_at_its_floor() {
    for algorithm in [FIXED, SLIDING, bucket(10, false)] {
        let counted = CountedTarget::new(vec![tier(10, 60, algorithm)], OverLimitPolicy::Ignore);
        counted.add(3);
        // one hit, five given back, two hits
        let mut change = CountChange::of(1);
        change.append(-5);
        change.append(2);
        counted.report(Report { change, ..Report::of(counted.time(), 0) });
        assert_eq!(counted.used(0), 2, "{algorithm:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn hits_count_at_their_own_time() {
    let counted = CountedTarget::new(vec![tier(10, 60, SLIDING)], OverLimitPolicy::Ignore);
    let then = counted.time();
    pass(40_000).await;
    counted.report(Report::of(then, 4));
    assert_eq!(counted.used(0), 4);
    pass(20_000).await;
    assert_eq!(counted.used(0), 0);
    let counted = CountedTarget::new(vec![tier(60, 60, bucket(10, false))], OverLimitPolicy::Ignore);
    let then = counted.time();
    pass(3_000).await;
    counted.report(Report::of(then, 4));
    assert_eq!(counted.used(0), 1);
}

#[tokio::test(start_paused = true)]
async fn hits_admitted_elsewhere_leave_a_bucket_in_debt() {
    let counted = CountedTarget::new(vec![tier(60, 60, bucket(10, false))], OverLimitPolicy::Ignore);
    counted.add(14);
    pass(4_000).await;
    assert_eq!(counted.take(1), 0);
    pass(1_000).await;
    assert_eq!(counted.take(1), 1);
    counted.add(1_000);
    pass(10_000).await;
    assert_eq!((counted.used(0), counted.take(1)), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn a_reported_rejection_restarts_a_strict_bucket() {
    let counted = CountedTarget::new(vec![tier(1, 10, bucket(1, true))], OverLimitPolicy::Ignore);
    assert_eq!(counted.take(1), 1);
    pass(9_000).await;
    let rejected_at = Some(Timestamp::from_nanos(counted.time().as_nanos() - 2_000_000_000));
    counted.report(Report { rejected_at, ..Report::of(counted.time(), 0) });
    pass(7_999).await;
    assert_eq!(
        counted.now(Op::Grant { report: None, least: 1, want: 1, hold: Period::default() }).granted,
        0
    );
    pass(1).await;
    assert_eq!(counted.take(1), 1);
}

#[tokio::test(start_paused = true)]
async fn a_grant_applies_its_report_first() {
    for algorithm in [FIXED, SLIDING, bucket(10, false)] {
        let counted = CountedTarget::new(vec![tier(10, 60, algorithm)], OverLimitPolicy::Ignore);
        let hold = Period::from_millis(100);
        let grant = |report, want| counted.now(Op::Grant { report, least: 1, want, hold }).granted;
        assert_eq!(grant(Some(Report::of(counted.time(), 4)), 8), 6, "{algorithm:?}");
        let unused = Report::unused(counted.time(), 5, counted.time().after(hold));
        assert_eq!(grant(Some(unused), 8), 5, "{algorithm:?}");
        assert_eq!(counted.used(0), 10);
    }
    // a window that has ended takes no part in the next one
    let counted = CountedTarget::new(vec![tier(10, 60, FIXED)], OverLimitPolicy::Ignore);
    let report = Some(Report::of(counted.time(), 4));
    pass(60_000).await;
    let reply = counted.now(Op::Grant { report, least: 1, want: 20, hold: Period::default() });
    assert_eq!((reply.granted, reply.counters[0].used()), (10, Hits(10)));
    assert!(matches!(reply.counters[0], CounterState::FixedWindow(_)));
}
