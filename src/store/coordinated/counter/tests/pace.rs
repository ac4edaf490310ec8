//! What a fetch sends, and what its grant changes.

use super::*;
use crate::limit::algorithm::CountChange;

fn ahead(fixture: &mut Fixture) -> u64 {
    held(&fixture.fetch()).map_or(0, |hold| hold.want)
}

#[test]
fn a_fetch_answers_the_wish_to_know_the_count() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.counter.refresh(millis(100), fixture.now);
    assert!(fixture.counter.has_pending());
    assert_eq!(fixture.request(1).len(), 1);
    assert!(!fixture.counter.has_pending(), "the reply has it");
}

#[test]
fn hits_are_leased_ahead_from_the_first_span_of_a_demand_on_and_with_each_later_one() {
    // fifteen hits are a rate before a span has ended
    let mut first = Fixture::new(&[fixed(100_000, 3_600)], 2);
    first.demand(millis(1), 15);
    assert!(ahead(&mut first) > 0);
    // a span that has just begun has few hits
    let mut next = Fixture::new(&[fixed(100_000, 3_600)], 2);
    next.demand(millis(1), 600);
    next.wait(millis(25));
    for _ in 0..9 {
        next.counter.demand.record(1, next.now);
    }
    next.demand(millis(25), 1);
    assert!(ahead(&mut next) > 0);
}

/// A sliding window counts them until then.
#[test]
fn hits_of_a_sliding_window_are_held_for_half_as_long_again_as_they_are_expected_to_last() {
    let mut fixture = Fixture::new(&[sliding(300, 60)], 3);
    fixture.demand(millis(1), 600);
    let Hold { want, time: hold, .. } = held(&fixture.request(1)).expect("hits are likely");
    let used_up = fixture.counter.demand.time_for(1 + want, fixture.now).as_nanos();
    assert!((90..=110).contains(&want) && used_up > 80_000_000, "{want}, {used_up} ns");
    // and for two leads of 10 ms
    assert_eq!(hold.as_nanos(), used_up + used_up / 2 + 20_000_000);
}

#[test]
fn a_reply_without_hits_leaves_no_lease() {
    let mut empty = Fixture::new(&[fixed(100, 60)], 2);
    assert_eq!(empty.take_elsewhere(100), 100);
    assert_eq!(empty.lease(1), 0);
    assert!(empty.counter.leases().is_empty());
}

#[test]
fn leases_that_end_together_are_spent_in_the_order_of_their_grants() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 3);
    for hits in [2, 3, 4] {
        fixture.hold(hits, Period::default());
        fixture.wait(millis(1));
    }
    assert_eq!(fixture.counter.leases().iter().map(|lease| lease.left).collect::<Vec<_>>(), [2, 3, 4]);
}

/// The store grants them before the report arrives that gives hits back.
#[test]
fn hits_given_back_during_a_fetch_leave_those_that_it_is_granted() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    assert_eq!(fixture.take_elsewhere(30), 30);
    let composed = fixture.request(6);
    fixture.give_back(50);
    let granted = fixture.deliver(composed);
    assert!(granted >= 6);
    fixture.flush();
    assert_eq!(u64::from(fixture.left_in_store()), 100 - granted);
    assert_eq!((fixture.counter.leased_hits(), fixture.counter.remaining(fixture.now)), (granted - 6, 94));
}

#[test]
fn a_grant_does_not_change_pending_hits_that_were_taken_or_are_of_another_window() {
    let change = |fixture: &Fixture| fixture.counter.unacknowledged.pending()[0].change;
    let mut taken = Fixture::new(&[fixed(100, 60)], 2);
    let composed = taken.request(6);
    taken.count(2);
    taken.deliver(composed);
    assert_eq!(change(&taken), CountChange::of(2));
    let mut earlier = Fixture::new(&[fixed(100, 60)], 2);
    earlier.wait(millis(59_990));
    let composed = earlier.request(6);
    earlier.give_back(2);
    earlier.wait(millis(20));
    assert!(earlier.deliver(composed) >= 6);
    assert_eq!(change(&earlier), CountChange::of(-2));
}

/// Half as many again as all instances use in the time of a hold.
#[test]
fn a_pause_ends_when_there_is_enough_for_all_instances() {
    let mut fixture = Fixture::new(&[bucket(100, 10)], 3);
    fixture.demand(millis(50), 60);
    let left = u64::from(fixture.left_in_store());
    fixture.take_elsewhere(left);
    assert_eq!(fixture.lease(1), 0);
    assert!(fixture.counter.is_denied(fixture.now));
    // forty tokens return in four seconds, and 45 are enough for ten hits of each in half a second
    fixture.demand(millis(50), 80);
    fixture.read();
    fixture.lease(1);
    let pause = fixture.counter.plan.denied_until.since(fixture.now);
    assert!((millis(350)..=millis(750)).contains(&pause), "{pause}");
}

/// A bucket that is less than half full is not one that has run out.
#[test]
fn a_scarcity_that_is_over_does_not_begin_again_before_the_bucket_runs_out() {
    let mut fixture = Fixture::new(&[bucket(100, 10)], 3);
    fixture.demand(millis(1), 600);
    fixture.take_elsewhere(100);
    assert_eq!(fixture.lease(1), 0);
    assert!(fixture.counter.is_denied(fixture.now));
    fixture.demand(millis(1), 5_500);
    fixture.lease(1);
    assert!(!fixture.counter.is_denied(fixture.now), "there is enough");
    fixture.take_elsewhere(20);
    fixture.lease(1);
    assert!(!fixture.counter.is_denied(fixture.now), "some are left");
}
