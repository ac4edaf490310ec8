//! Tests of reports, and of who has changed a counter last.

use weir_limit::{
    Algorithm, Hits, OverLimitPolicy, Period, Timestamp,
    algorithm::{CountChange, CounterState},
};
use weir_store::{
    clock::Clock as _,
    remote::{Exchange, Reply, Report},
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

    /// Reads as `writer`. Returns whether nobody else has changed the first tier since; none if nobody uses it.
    fn is_own(&self, writer: u64) -> Option<bool> {
        let reply = self.now(Op::Exchange(Exchange { writer, ..Exchange::read() }));
        (!reply.missing.contains(0)).then(|| reply.own.contains(0))
    }

    /// Counts as `writer`.
    fn add_as(&self, writer: u64, hits: i64) {
        let report = Report::of(self.time(), hits);
        self.now(Op::Exchange(Exchange { writer, ..Exchange::of_report(report) }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_counter_is_that_of_whoever_has_changed_it_last() {
    for algorithm in [SLIDING, bucket(10, false)] {
        let counted =
            CountedTarget::new(vec![tier(10, 60, algorithm), tier(50, 60, FIXED)], OverLimitPolicy::Ignore);
        assert_eq!(counted.is_own(1), None);
        counted.add_as(1, 2);
        assert_eq!([1, 2].map(|writer| counted.is_own(writer)), [Some(true), Some(false)]);
        // reading and rejecting change nothing
        let rejected = Exchange { writer: 2, ..Exchange::of_try(99, OverLimitPolicy::Ignore) };
        assert!(!counted.now(Op::Exchange(rejected)).own.contains(0));
        assert_eq!([1, 2].map(|writer| counted.is_own(writer)), [Some(true), Some(false)]);
        // what another one has given back is not forgotten at once
        counted.add_as(2, -2);
        assert_eq!([1, 2].map(|writer| counted.is_own(writer)), [Some(false), Some(true)]);
        pass(120_000).await;
        assert_eq!(counted.is_own(2), None);
    }
}

#[tokio::test(start_paused = true)]
async fn fixed_windows_are_nobodys() {
    let counted = CountedTarget::new(vec![tier(10, 60, FIXED)], OverLimitPolicy::Ignore);
    assert_eq!(counted.is_own(1), Some(false));
    counted.add_as(1, 2);
    assert_eq!(counted.is_own(1), Some(false));
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
    assert_eq!((reply.granted, reply.counters[0].used()), (10, Hits(0)));
    assert!(matches!(reply.counters[0], CounterState::FixedWindow(_)));
}
