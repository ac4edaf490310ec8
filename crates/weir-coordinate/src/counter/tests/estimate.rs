//! The local estimate: what it adopts of a reply, and what it counts without one.

use super::*;
use crate::{
    client::{Delivery, SentTry},
    counter::auto,
};
use weir_limit::algorithm::{CounterState, FixedWindow};
use weir_store::remote::TierSet;

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

/// The store carries out a look after a hold, and its reply is there first.
#[test]
fn a_look_that_overtakes_a_hold_does_not_hide_the_held_hit() {
    for tier in [fixed(9, 60), sliding(9, 60), bucket(9, 60)] {
        let mut fixture = Fixture::new(&[tier], 3);
        fixture.take_elsewhere(2);
        fixture.read();
        fixture.ask(0, TryKind::Look);
        let mut holding = fixture.compose();
        let (command, sent) = holding.last_mut().expect("a look");
        sent.lease_more(command, 4, millis(300));
        fixture.counter.traffic.open().on_way.last_mut().expect("one is on its way").want = 4;
        fixture.ask(1, TryKind::Take(OverLimitPolicy::Ignore));
        let beside = fixture.compose();
        assert_eq!(beside.len(), 1, "it passes");
        let late: Vec<_> = holding
            .into_iter()
            .map(|(command, sent)| (fixture.store.execute(&command, fixture.now), sent))
            .collect();
        assert_eq!(fixture.deliver(beside), 1);
        assert!(fixture.decide(3).is_none(), "the held hits may be in the estimate: the store decides");
        for (reply, mut sent) in late {
            let link = fixture.link();
            fixture.counter.apply(&mut sent, Ok((&reply, fixture.now)), &link);
        }
        assert_eq!((fixture.counter.ledger.leased(), fixture.counter.remaining(fixture.now)), (4, 6));
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
            let asks = TryKind::Lease(OverLimitPolicy::Ignore);
            let (id, outcome) = fixture.counter.add_try(Hits(5), asks, None).expect("there is room");
            let composed = fixture.compose();
            drop(outcome);
            fixture.wait(millis(10));
            assert!(fixture.counter.traffic.give_up(id, Some(Hits(5))), "it was sent");
            let (instances, now) = (fixture.instances, fixture.now);
            let decision = fixture.counter.among(instances).count_fallback(
                Direction::Take,
                OverLimitPolicy::Ignore,
                Hits(5),
                false,
                now,
            );
            assert!(!decision.over);
            let sent = SentTry { generation: fixture.counter.generation().0, id };
            fixture.counter.note_answer(Delivery::OnWay(sent), Hits(5), now);
            fixture.deliver(composed);
            let used = fixture.counter.look(Hits(0), now).before;
            assert_eq!(used, Hits(10), "{tier:?}, {instances} instances");
            // and the store counts it once, beside what is held
            let held = fixture.counter.ledger.leased();
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

fn is_burst(fixture: &Fixture, hits: u64, instances: usize, round_trip: Period) -> bool {
    auto::is_burst(&fixture.counter, Hits(hits), instances, round_trip, fixture.now)
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
