//! Which requests wait, and in which order they are served.

use weir_limit::{Modes, Period, Scope, line::Rejection};
use weir_limiter::DecisionSettings;
use weir_observe::Source as _;
use weir_store::WaitBounds;

use super::support::{Call, Fixture, rules};

const TWO: &str = "{ requests: 2, per: 1s, algorithm: fixed_window }";

fn rejection(call: &mut Call) -> Option<Rejection> {
    call.acquired().rejection
}

/// A rejection with this retry time.
fn timeout(millis: u64) -> Rejection {
    Rejection::Timeout { retry_after: Period::from_millis(millis) }
}

#[test]
fn callers_are_served_in_the_order_of_their_arrival() {
    let fixture = Fixture::new(&rules(TWO));
    let mut calls: Vec<Call> = (0..7).map(|_| fixture.acquire(&["a"], 1, 60_000)).collect();
    for second in 0..4 {
        for (i, call) in calls.iter_mut().enumerate() {
            assert_eq!(call.is_admitted(), i < 2 * (second + 1), "{i} after {second} s");
        }
        fixture.pass(1_000);
    }
    assert_eq!(calls[6].acquired().waited, Period::from_secs(3));
    // each was woken once, when its turn had come
    assert!(calls[2..].iter().all(|call| call.woken.times() == 1));
    assert_eq!(fixture.limiter.store().waiters(), 0);
}

#[test]
fn a_wait_that_would_be_too_long_is_rejected_at_once() {
    let fixture = Fixture::new(&rules(TWO));
    let _calls: Vec<Call> = (0..4).map(|_| fixture.acquire(&["a"], 1, 60_000)).collect();
    assert_eq!(rejection(&mut fixture.acquire(&["a"], 1, 1_999)), Some(timeout(2_000)));
    assert_eq!(rejection(&mut fixture.acquire(&["a"], 2, 1_999)), Some(timeout(2_000)));
    assert!(fixture.acquire(&["a"], 1, 2_000).waits());
    assert_eq!(rejection(&mut fixture.acquire(&["a"], 3, 60_000)), Some(Rejection::Never));
    // other keys have other lines
    assert!(fixture.acquire(&["b"], 2, 0).is_admitted());
    // a check takes nothing and waits for nothing
    assert!(fixture.acquire(&["a"], 0, 60_000).is_admitted());
}

#[test]
fn whoever_drops_the_call_gives_the_place_up() {
    let fixture = Fixture::new(&rules(TWO));
    let _first = [fixture.acquire(&["a"], 1, 0), fixture.acquire(&["a"], 1, 0)];
    let second = [fixture.acquire(&["a"], 1, 1_000), fixture.acquire(&["a"], 1, 1_000)];
    let mut third = fixture.acquire(&["a"], 1, 2_000);
    assert_eq!(rejection(&mut fixture.acquire(&["a"], 1, 1_000)), Some(timeout(2_000)));
    drop(second);
    assert_eq!(fixture.limiter.store().waiters(), 1);
    fixture.pass(1_000);
    assert!(third.is_admitted());
}

/// An admission that its caller did not see, because it was dropped, goes to the next one.
#[test]
fn hits_of_a_dropped_call_are_given_back() {
    let fixture = Fixture::new(&rules(TWO));
    let _taken = [fixture.acquire(&["a"], 2, 0)];
    let dropped = fixture.acquire(&["a"], 2, 1_000);
    let mut next = fixture.acquire(&["a"], 2, 5_000);
    fixture.pass(1_000);
    assert!(dropped.woken.times() == 1 && next.waits());
    drop(dropped);
    assert!(next.woken.times() == 1 && next.is_admitted());
}

#[test]
fn a_permit_that_was_not_used_is_given_back() {
    let fixture = Fixture::new(&rules(TWO));
    let receipt = fixture.acquire(&["a"], 2, 0).acquired().receipt.expect("a receipt");
    let mut waits = fixture.acquire(&["a"], 1, 1_000);
    assert!(waits.waits());
    fixture.limiter.put_back(receipt.clone(), weir_store::clock::Clock::now(&*fixture.clock));
    assert!(waits.is_admitted());
    fixture.pass(1_000);
    assert!(fixture.acquire(&["a"], 2, 0).is_admitted());
    // its window has ended
    fixture.limiter.put_back(receipt, weir_store::clock::Clock::now(&*fixture.clock));
    assert!(!fixture.ask(&["a"], 1));
}

#[test]
fn ordinary_callers_do_not_pass_the_line_but_have_their_part() {
    let limit = "{ requests: 10, per: 1s, algorithm: fixed_window }";
    let fixture = Fixture::new(&rules(limit));
    let _taken = fixture.acquire(&["a"], 10, 0);
    let mut calls: Vec<Call> = (0..100).map(|_| fixture.acquire(&["a"], 1, 60_000)).collect();
    // they ask for four in each second, and get most of what they asked for in the second before
    let (mut admitted, mut asked) = (0, 0);
    for tick in 0..40 {
        fixture.pass(100);
        if tick >= 10 && tick % 5 < 2 {
            asked += 1;
            admitted += usize::from(fixture.ask(&["a"], 1));
        }
    }
    let served = calls.iter_mut().filter_map(|call| call.is_admitted().then_some(())).count();
    assert!(admitted >= 6 && admitted <= asked, "{admitted} of {asked}");
    assert!(served + admitted <= 40 && served >= 20, "{served} waiters, {admitted} others");
}

/// Limits of one request that count together or not at all leave a line as it was.
#[test]
fn a_request_of_several_limits_takes_nothing_if_one_rejects_it() {
    let settings = DecisionSettings { scope: Scope::Request, ..DecisionSettings::default() };
    let fixture = Fixture::with_bounds(&rules(TWO), WaitBounds::default(), settings);
    let _full = fixture.acquire(&["a"], 2, 0);
    assert!(fixture.acquire(&["b"], 2, 0).is_admitted());
    let mut call = fixture.acquire(&["a"], 1, 1_000);
    for _ in 0..10 {
        assert!(!fixture.ask(&["a", "b"], 1) && !fixture.ask(&["c", "a"], 1));
    }
    assert!(fixture.ask(&["c"], 2), "the hits of the rejected requests were taken back");
    // the last of them makes the turn of the line
    fixture.clock.advance(Period::from_secs(1));
    assert!(fixture.ask(&["a", "b"], 1));
    assert!(call.woken.times() == 1 && call.is_admitted());
}

#[test]
fn a_request_waits_for_one_limit_only() {
    let fixture = Fixture::new(&rules(TWO));
    let error = fixture.acquire(&["a", "b"], 1, 1_000).outcome().map(|outcome| format!("{outcome:?}"));
    assert!(error.is_some_and(|error| error.contains("SeveralLimits(2)")));
    assert!(fixture.acquire(&["a", "b"], 1, 0).is_admitted());
    assert_eq!(rejection(&mut fixture.acquire(&["a", "b"], 2, 0)), Some(timeout(1_000)));
}

#[test]
fn limits_without_a_line_decide_at_once() {
    let strict = "{ algorithm: token_bucket, requests: 1, per: 10s, burst: 1, strict: true }";
    let fixture = Fixture::new(&rules(strict));
    assert!(fixture.acquire(&["a"], 1, 60_000).is_admitted());
    assert_eq!(rejection(&mut fixture.acquire(&["a"], 1, 60_000)), Some(timeout(10_000)));
    let shadow = format!("{}    shadow_mode: true\n", rules(TWO));
    let fixture = Fixture::new(&shadow);
    assert!((0..9).all(|_| fixture.acquire(&["a"], 1, 60_000).is_admitted()));
    let settings =
        DecisionSettings { modes: Modes { shadow: true, ..Modes::default() }, ..DecisionSettings::default() };
    let fixture = Fixture::with_bounds(&rules(TWO), WaitBounds::default(), settings);
    assert!((0..9).all(|_| fixture.acquire(&["a"], 1, 60_000).is_admitted()));
}

/// Callers that wait are bounded for each key and in all, and no wait is longer than the longest.
#[test]
fn waiters_are_bounded() {
    let bounds = WaitBounds { per_key: 3, total: 4, longest: Period::from_secs(10) };
    let fixture = Fixture::with_bounds(&rules(TWO), bounds, DecisionSettings::default());
    let full = |millis| Some(Rejection::Full { retry_after: Period::from_millis(millis) });
    let _taken =
        [fixture.acquire(&["a"], 2, 0), fixture.acquire(&["b"], 2, 0), fixture.acquire(&["c"], 2, 0)];
    let mut waiting: Vec<Call> = (0..3).map(|_| fixture.acquire(&["a"], 1, u64::MAX)).collect();
    assert_eq!(rejection(&mut fixture.acquire(&["a"], 1, u64::MAX)), full(2_000));
    waiting.push(fixture.acquire(&["b"], 1, u64::MAX));
    assert_eq!(rejection(&mut fixture.acquire(&["c"], 1, u64::MAX)), full(1_000));
    waiting.pop();
    assert!(fixture.acquire(&["c"], 1, u64::MAX).waits());
    let week = "{ requests: 1, per: 11s, algorithm: sliding_window }";
    let fixture = Fixture::with_bounds(&rules(week), bounds, DecisionSettings::default());
    assert!(fixture.acquire(&["a"], 1, 0).is_admitted());
    assert_eq!(rejection(&mut fixture.acquire(&["a"], 1, u64::MAX)), Some(timeout(11_000)));
}

#[test]
fn a_stop_rejects_everybody_who_waits() {
    let fixture = Fixture::new(&rules(TWO));
    let _taken = fixture.acquire(&["a"], 1, 0);
    let mut waits = fixture.acquire(&["a"], 2, 1_000);
    assert!(waits.waits());
    fixture.limiter.close_waiters(weir_store::clock::Clock::now(&*fixture.clock));
    assert_eq!((rejection(&mut waits), waits.woken.times()), (Some(Rejection::Closed), 1));
    // what fits is admitted until the end
    assert!(fixture.acquire(&["a"], 1, 1_000).is_admitted());
    assert_eq!(rejection(&mut fixture.acquire(&["a"], 1, 1_000)), Some(Rejection::Closed));
}

#[test]
fn metrics_count_who_waits_and_what_became_of_them() {
    let fixture = Fixture::new(&rules(TWO));
    let _taken = fixture.acquire(&["a"], 2, 0);
    let served = fixture.acquire(&["a"], 2, 1_000);
    let left = fixture.acquire(&["a"], 2, 2_000);
    let _rejected = fixture.acquire(&["a"], 1, 10);
    let metric = |name: &str, label: Option<&str>| {
        let metrics = fixture.limiter.metrics();
        let found = metrics.iter().find(|metric| {
            metric.name == name && metric.labels.first().map(|(_, value)| value.as_str()) == label
        });
        found.map(|metric| metric.value)
    };
    assert_eq!(metric("weir.waiters", None), Some(2));
    assert_eq!(metric("weir.waits.rejected", Some("timeout")), Some(1));
    drop(left);
    fixture.pass(1_000);
    let mut served = served;
    assert!(served.is_admitted());
    assert_eq!(metric("weir.waiters", None), Some(0));
    assert_eq!(metric("weir.waits", None), Some(2));
    assert_eq!(metric("weir.waits.admitted", None), Some(1));
    assert_eq!(metric("weir.waits.left", None), Some(1));
}

/// A lower limit would let them wait for longer: its share of the requests shows what it costs.
#[test]
fn callers_that_wait_count_once_in_the_shadow_of_their_rule() {
    let fixture = Fixture::new(&rules("{ requests: 2, per: 1s, shadow: { requests: 1, per: 1s } }"));
    let shadow = |fixture: &Fixture| {
        let counts = fixture.stats.rule(&["partners".into(), "api".into()]).shadow();
        (counts.within_limit, counts.over_limit)
    };
    let _taken = fixture.acquire(&["a"], 2, 0);
    let mut waits = fixture.acquire(&["a"], 1, 1_000);
    assert!(waits.waits());
    fixture.pass(1_000);
    assert!(waits.is_admitted());
    assert_eq!(shadow(&fixture), (1, 2));
    assert!(fixture.acquire(&["a"], 1, 0).acquired().receipt.is_some(), "it can be given back");
}
