//! Pauses: when a bucket has run out, requesting each token as it returns would cost every instance a call.

use super::*;

/// The counter of an empty bucket of 100 in 10 s, with a hit each millisecond, after it has asked for one.
fn overloaded(instances: usize) -> Fixture {
    let mut fixture = Fixture::new(&[bucket(100, 10)], instances);
    fixture.demand(millis(1), 600);
    let left = u64::from(fixture.left_in_store());
    fixture.take_elsewhere(left);
    assert_eq!(fixture.lease(1), 0);
    fixture
}

/// The pause lasts until every instance could receive what it can use, half of the bucket or two holds at most: here
/// two holds of half a second.
#[test]
fn an_empty_bucket_is_left_alone_for_a_while() {
    let mut fixture = overloaded(3);
    let begun = fixture.now;
    let pause = fixture.counter.plan.denied_until.since(begun);
    assert_eq!(pause, millis(1_000));
    // the wait for a token would be shorter, but nobody is granted it
    assert!(fixture.decide(1).is_some_and(|denied| denied.over && denied.reset == pause));
    // a token that returns meanwhile is left for the end of the pause
    fixture.wait(millis(150));
    assert!(fixture.decide(1).is_some_and(|denied| denied.over && denied.reset == millis(850)));
    // the next call is sent shortly before the end: three hits and two round trips of 2 ms
    let mut calls = Vec::new();
    while fixture.counter.is_denied(fixture.now) {
        if fixture.counter.is_pause_ending(fixture.now) {
            calls.push(fixture.now.since(begun).as_nanos() / 1_000_000);
        }
        fixture.wait(millis(1));
    }
    assert_eq!(calls.len(), 1, "once");
    assert!((985..=995).contains(&calls[0]), "{calls:?}");
    assert!(!fixture.counter.is_pause_ending(fixture.now), "it is over");
}

#[test]
fn there_is_no_pause_without_others_or_overload_or_a_bucket() {
    assert!(!overloaded(1).counter.is_denied(START));
    // few hits arrive
    let mut quiet = Fixture::new(&[bucket(100, 10)], 3);
    quiet.take_elsewhere(100);
    quiet.lease(1);
    assert!(!quiet.counter.is_denied(quiet.now));
    let mut window = Fixture::new(&[sliding(100, 10)], 3);
    window.demand(millis(1), 600);
    window.take_elsewhere(100);
    window.lease(1);
    assert!(!window.counter.is_denied(window.now));
    // there is enough
    let mut full = Fixture::new(&[bucket(100, 10)], 3);
    full.demand(millis(1), 600);
    assert!(full.lease(1) > 0 && !full.counter.is_denied(full.now));
    // less than half is left, and it has not run out
    let mut half = Fixture::new(&[bucket(100, 10)], 3);
    half.demand(millis(1), 600);
    half.take_elsewhere(70);
    assert!(half.lease(1) > 0 && !half.counter.is_denied(half.now));
}

/// It begins when the next decisions find less than one hit for each instance, or fewer were granted than requested,
/// and ends when there is enough for all of them.
#[test]
fn a_scarcity_lasts_until_there_is_enough_for_all() {
    for (left, is_scarce) in [(4, false), (3, true)] {
        let mut fixture = Fixture::new(&[bucket(100, 10)], 3);
        fixture.demand(millis(1), 600);
        fixture.take_elsewhere(100 - left);
        // one of them is granted
        assert_eq!(fixture.lease(1), 1);
        assert_eq!(fixture.counter.is_denied(fixture.now), is_scarce, "{left} left");
    }
    // half of the bucket is back after five seconds
    for (waited, is_scarce) in [(1_000, true), (4_500, true), (5_100, false)] {
        let mut fixture = overloaded(3);
        fixture.demand(millis(1), waited);
        assert!(fixture.lease(1) > 0);
        assert_eq!(fixture.counter.is_denied(fixture.now), is_scarce, "after {waited} ms");
    }
}
