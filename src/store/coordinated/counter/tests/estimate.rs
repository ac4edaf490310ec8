//! The local estimate: what it adopts of a reply, and what it counts without one.

use super::*;
use crate::store::coordinated::delivery::{Delivery, SentTry};
use crate::{
    limit::algorithm::{CounterState, FixedWindow},
    store::remote::TierSet,
};

fn reply(counters: &[CounterState], own: bool) -> Reply {
    Reply { counters: counters.iter().cloned().collect(), own: TierSet(own.into()), ..Reply::default() }
}

fn used(tier: &Tier, hits: u64, at: Timestamp) -> CounterState {
    let mut state = CounterState::unused(tier, at);
    state.take(tier, at, Hits(hits));
    state
}

/// The store's state has the hits of a report as of the last of them.
#[test]
fn an_estimate_stays_as_it_is_while_nobody_else_changes_the_store_s() {
    for tier in [sliding(100, 60), bucket(100, 60)] {
        let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
        fixture.count(10);
        // those that are not sent yet count too
        for (hits, own, remaining) in [(40, true, 50), (70, true, 50), (60, false, 30), (20, true, 30)] {
            let state = used(&tier, hits, START);
            fixture.counter.apply_last_reply(&reply(&[state], own), fixture.now);
            assert_eq!(fixture.counter.remaining(fixture.now), remaining, "{hits}");
            fixture.wait(Period::from_nanos(1));
        }
        // a store that does not have it knows less
        let lost = Reply { missing: TierSet(1), ..reply(&[used(&tier, 0, START)], false) };
        fixture.counter.lose_exactness();
        fixture.counter.apply_last_reply(&lost, fixture.now);
        assert_eq!(fixture.counter.remaining(fixture.now), 30);
    }
}

/// A lost command may have changed the store's state.
#[test]
fn after_a_lost_command_any_state_is_adopted() {
    let tier = sliding(100, 60);
    let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
    fixture.counter.apply_last_reply(&reply(&[used(&tier, 1, START)], false), fixture.now);
    fixture.count(2);
    assert!(fixture.is_exact());
    fixture.counter.lose_exactness();
    fixture.counter.apply_last_reply(&reply(&[used(&tier, 40, START)], true), fixture.now);
    assert_eq!(fixture.counter.remaining(fixture.now), 58);
    assert!(fixture.is_exact(), "now it is known again");
}

/// The store carries out a look after a hold, and its reply is there first.
#[test]
fn a_look_that_overtakes_a_hold_does_not_hide_the_held_hit() {
    for tier in [fixed(9, 60), sliding(9, 60), bucket(9, 60)] {
        let mut fixture = Fixture::new(&[tier], 3);
        fixture.take_elsewhere(2);
        fixture.read();
        fixture.ask(0, Asks::Look);
        let mut holding = fixture.compose();
        let (command, sent) = holding.last_mut().expect("a look");
        sent.hold_more(command, 4, millis(300));
        fixture.counter.want_for_test(4);
        fixture.ask(1, Asks::Take(OverLimitPolicy::Ignore));
        let beside = fixture.compose();
        assert_eq!(beside.len(), 1, "it passes");
        let late: Vec<_> = holding
            .into_iter()
            .map(|(command, sent)| (fixture.store.execute(&command, fixture.now), sent))
            .collect();
        assert_eq!(fixture.deliver(beside), 1);
        for (reply, mut sent) in late {
            let link = fixture.link();
            fixture.counter.apply(&mut sent, Ok((&reply, fixture.now)), &link);
        }
        assert_eq!((fixture.counter.leased_hits(), fixture.counter.remaining(fixture.now)), (4, 6));
    }
}

/// A lone instance's exact state is kept when the store adopts it; the reply's states replace the estimate otherwise.
#[test]
fn a_hit_that_was_admitted_while_its_try_was_on_its_way_counts_once() {
    for tier in [fixed(25, 60), sliding(25, 60), bucket(25, 60)] {
        for instances in [1, 3] {
            let mut fixture = Fixture::new(std::slice::from_ref(&tier), instances);
            fixture.lease(5);
            fixture.wait(millis(100));
            let asks = Asks::Lease(OverLimitPolicy::Ignore);
            let (id, outcome) = fixture.counter.add_try(false, Hits(5), asks, None).expect("there is room");
            let composed = fixture.compose();
            drop(outcome);
            fixture.wait(millis(10));
            assert!(fixture.counter.give_up(id, Some(Hits(5))), "it was sent");
            let (instances, now) = (fixture.instances, fixture.now);
            let decision =
                fixture.counter.among(instances).count_fallback(Direction::Take, Hits(5), false, now);
            assert!(!decision.over);
            let sent = SentTry { generation: fixture.counter.generation().0, id };
            fixture.counter.note_answer(Delivery::OnWay(sent), Hits(5), now);
            fixture.deliver(composed);
            let used = fixture.counter.look(Hits(0), now).before;
            assert_eq!(used, Hits(10), "{tier:?}, {instances} instances");
            // and the store counts it once, beside what is held
            let held = fixture.counter.leased_hits();
            assert_eq!(u64::from(fixture.left_in_store()) + held, 15, "{tier:?}, {instances} instances");
        }
    }
}

#[test]
fn a_fixed_window_that_has_ended_is_not_adopted() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    let window = |end: u64, hits| {
        CounterState::FixedWindow(FixedWindow::new(START.after(Period::from_secs(end)), Hits(hits)))
    };
    fixture.now = START.after(Period::from_secs(60));
    fixture.count(3);
    fixture.counter.apply_last_reply(&reply(&[window(60, 99)], false), fixture.now);
    assert_eq!(fixture.counter.remaining(fixture.now), 97);
    fixture.counter.apply_last_reply(&reply(&[window(120, 40)], false), fixture.now);
    assert_eq!(fixture.counter.remaining(fixture.now), 57);
    fixture.counter.apply_last_reply(&reply(&[window(180, 10)], false), fixture.now);
    assert_eq!(fixture.counter.remaining(START.after(Period::from_secs(130))), 90);
}

#[test]
fn a_hit_beside_an_unused_lease_counts_for_its_own_period() {
    let tier = sliding(100, 60);
    let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
    fixture.hold(9, millis(500));
    assert_eq!(fixture.counter.remaining(fixture.now), 100);
    fixture.wait(millis(10));
    let at = fixture.now;
    assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
    let end = at.after(tier.period);
    assert_eq!(fixture.counter.remaining(Timestamp::from_nanos(end.as_nanos() - 1)), 99);
    assert_eq!(fixture.counter.remaining(end), 100);
    // hits within a twelfth of the period share a span, also while a lease is held
    fixture.wait(millis(20));
    assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
    fixture.hold(3, millis(100));
    let window = fixture.counter.estimate[0].sliding_window().expect("a sliding window");
    assert!(window.spans().iter().all(|span| span.hits > 0), "{:?}", window.spans());
}

#[test]
fn rejected_hits_that_count_are_reported_but_not_admitted() {
    let mut fixture = Fixture::with_policy(&[fixed(10, 60)], 2, OverLimitPolicy::Count);
    assert!(!fixture.count(8).over);
    assert!(fixture.count(5).over);
    assert_eq!((fixture.counter.unacknowledged.admitted(), fixture.counter.owed_hits().unreported), (8, 13));
    let commands = fixture.take();
    assert_eq!(commands[0].0.exchange.reports.last().map(|report| report.change.hits), Some(13));
    assert_eq!(fixture.counter.apply_delivery(Delivery::Applied), 8);
    let mut ignored = Fixture::new(&[fixed(10, 60)], 2);
    assert!(ignored.count(11).over);
    assert!(!ignored.counter.has_pending());
}

/// The store does not know which tier has rejected a reported try.
#[test]
fn a_try_that_only_another_tier_rejects_is_not_reported() {
    for (hits, is_reported) in [(8, false), (11, true)] {
        let mut fixture = Fixture::new(&[fixed(5, 3_600), strict_bucket(10, 60)], 2);
        fixture.count(1);
        fixture.flush();
        assert!(!fixture.counter.has_pending() && fixture.count(hits).over);
        assert_eq!(fixture.counter.has_pending(), is_reported, "{hits}");
    }
}

/// A try restarts the refill of a strict bucket, at its own instant.
#[test]
fn the_try_that_a_strict_bucket_rejects_is_reported() {
    let mut fixture = Fixture::new(&[strict_bucket(10, 60)], 2);
    assert!(!fixture.count(10).over);
    fixture.flush();
    fixture.wait(millis(500));
    let tried_at = fixture.now;
    assert!(fixture.count(1).over);
    fixture.wait(millis(5));
    let reports = fixture.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].rejected_at, reports[0].change.hits), (Some(tried_at), 0));
    let mut other = Fixture::new(&[bucket(10, 60)], 2);
    other.count(10);
    other.flush();
    assert!(other.count(1).over);
    assert!(!other.counter.has_pending());
}

#[test]
fn hits_that_are_given_back_leave_the_leased_ones() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.hold(6, Period::default());
    fixture.give_back(0);
    assert!(!fixture.counter.has_pending());
    fixture.give_back(50);
    let commands = fixture.take();
    fixture.deliver(commands);
    assert_eq!((fixture.left_in_store(), fixture.counter.remaining(fixture.now)), (94, 100));
    assert_eq!(fixture.counter.leased_hits(), 6);
}

#[test]
fn without_the_store_every_hit_counts_for_each_instance() {
    let mut fixture = Fixture::new(&[fixed(20, 60)], 3);
    fixture.take_elsewhere(5);
    fixture.read();
    let fall_back = |fixture: &mut Fixture, direction, hits| {
        fixture.counter.among(3).count_fallback(direction, Hits(hits), true, fixture.now)
    };
    for left in [4, 3, 2] {
        let decision = fall_back(&mut fixture, Direction::Take, 1);
        assert_eq!((decision.over, decision.remaining), (false, left));
    }
    assert!(fall_back(&mut fixture, Direction::Take, 5).over);
    assert_eq!(fixture.counter.owed_hits().unreported, 3, "rejected ones are not reported");
    assert_eq!(fall_back(&mut fixture, Direction::GiveBack, 2).remaining, 4);
    assert_eq!(fixture.counter.owed_hits().unreported, 1);
    // the next reply ends it
    fixture.flush();
    assert_eq!((fixture.left_in_store(), fixture.counter.remaining(fixture.now)), (14, 14));
    assert!(fixture.counter.rare.is_nothing(), "its states are freed");
    assert_eq!(fall_back(&mut fixture, Direction::Take, 1).remaining, 3);
}

/// The store may have counted them, or given them back, already.
#[test]
fn hits_of_unknown_delivery_count_here_and_are_not_reported() {
    for instances in [1, 3] {
        let mut fixture = Fixture::new(&[fixed(300, 60)], instances);
        fixture.take_elsewhere(1);
        fixture.read();
        let now = fixture.now;
        let counter = &mut fixture.counter;
        counter.among(instances).count_fallback(Direction::Take, Hits(5), false, now);
        counter.admit(Hits(2), false, now);
        counter.among(instances).count_fallback(Direction::Take, Hits(3), false, now);
        assert_eq!((counter.remaining(now), counter.has_unacknowledged()), (289, false));
        counter.among(instances).count_fallback(Direction::GiveBack, Hits(30), false, now);
        assert_eq!((counter.remaining(now), counter.has_unacknowledged()), (300, false));
        // others are
        counter.among(instances).count_fallback(Direction::Take, Hits(4), true, now);
        counter.admit(Hits(2), true, now);
        counter.among(instances).count_fallback(Direction::GiveBack, Hits(1), true, now);
        fixture.flush();
        assert_eq!(fixture.left_in_store(), 294);
    }
}

fn is_burst(fixture: &Fixture, hits: u64, instances: usize, round_trip: Period) -> bool {
    fixture.counter.auto_policy(Some(instances), round_trip).is_burst(Hits(hits), fixture.now)
}

/// A burst is more than a tenth of the limit if all instances take as much, and several times the demand.
#[test]
fn a_burst_is_unexpected_and_large() {
    let none = Period::default();
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.count(2);
    assert!(!is_burst(&fixture, 3, 2, none));
    assert!(is_burst(&fixture, 4, 2, none));
    assert!(!is_burst(&fixture, 1, 3, none));
    assert!(is_burst(&fixture, 2, 3, none));
    assert!(!is_burst(&fixture, 90, 1, none), "nobody else takes any");
    // with a hit each millisecond, 20 are expected within two round trips of 10 ms, and 30 more since the first that is
    // not reported
    let mut busy = Fixture::new(&[fixed(100, 60)], 2);
    busy.demand(millis(1), 600);
    assert!(!is_burst(&busy, 55, 2, millis(10)));
    assert!(is_burst(&busy, 70, 2, millis(10)));
    busy.read();
    busy.count(1);
    busy.demand(millis(1), 30);
    assert!(!is_burst(&busy, 124, 2, millis(10)));
    assert!(is_burst(&busy, 169, 2, millis(10)));
    // three times as many as are expected are none
    let expected = busy.counter.demand.in_the_next(millis(50), busy.now);
    assert!(!is_burst(&busy, 3 * expected - 1, 2, millis(10)));
    assert!(is_burst(&busy, 3 * expected, 2, millis(10)));
}

#[test]
fn what_arrives_at_once_is_a_burst_however_much_is_expected_in_the_time_since_the_last_reply() {
    let mut fixture = Fixture::new(&[sliding(1_000, 60)], 2);
    for _ in 0..2 {
        for hit in 0..200 {
            assert_eq!(is_burst(&fixture, 1, 2, millis(10)), hit >= 50);
            fixture.counter.demand.record(1, fixture.now);
            fixture.count(1);
        }
        fixture.flush();
        fixture.wait(Period::from_secs(10));
    }
    // but not requests of many hits that are usual
    let mut usual = Fixture::new(&[fixed(100_000, 60)], 10);
    for _ in 0..4 {
        usual.wait(Period::from_secs(15));
        usual.counter.demand.record(2_000, usual.now);
        usual.count(2_000);
        usual.flush();
    }
    usual.wait(Period::from_secs(15));
    assert!(!is_burst(&usual, 2_000, 10, millis(2)));
    // so are the first hits, within a fiftieth of a second
    let mut slow = Fixture::new(&[sliding(1_000, 60)], 2);
    for _ in 0..50 {
        slow.demand(Period::from_nanos(200_000), 1);
        slow.count(1);
    }
    assert!(is_burst(&slow, 1, 2, millis(50)));
}

#[test]
fn a_look_says_whether_hits_fit_and_counts_none() {
    let mut fixture = Fixture::new(&[fixed(10, 60), fixed(100, 3_600)], 2);
    fixture.count(8);
    for (hits, over) in [(0, false), (2, false), (3, true)] {
        let look = fixture.counter.look(Hits(hits), fixture.now);
        assert_eq!((look.over, look.remaining), (over, 2), "{hits}");
    }
}

fn is_burst_over(fixture: &Fixture, now: Timestamp) -> bool {
    fixture.counter.auto_policy(Some(2), Period::default()).is_burst_over(now)
}

#[test]
fn a_burst_is_over_when_its_leases_are_used_or_its_demand_is_known() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    assert!(fixture.counter.is_settled(), "nothing is left of it");
    fixture.count(1);
    assert!(!fixture.counter.is_settled());
    assert!(!is_burst_over(&fixture, fixture.now.after(Period::from_secs(9))), "no reply yet");
    fixture.hold(1, Period::default());
    assert!(!is_burst_over(&fixture, fixture.now));
    assert!(!is_burst_over(&fixture, fixture.now.after(millis(10))));
    assert!(is_burst_over(&fixture, fixture.now.after(millis(11))));
}
