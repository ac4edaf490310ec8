//! Replies: who is answered, and what becomes of the hits that they bring or take.

use super::*;
use crate::{
    client::{Delivery, SentTry},
    counter::TryOutcome,
};
use weir_limit::ReservationRequest;

const SECOND: Period = Period::from_secs(1);

const fn reserve(least: u64, want: u64) -> TryKind {
    TryKind::Reserve(ReservationRequest { least: Hits(least), want: Hits(want), hold: SECOND })
}

fn told(fixture: &mut Fixture) -> TryOutcome {
    fixture.waiting.pop().expect("it waits").take_or_leave().expect("it is told")
}

/// Gives up a try of `hits` that was sent, which are admitted without the store if it `is_admitted`.
fn leave(fixture: &mut Fixture, (id, outcome): (u32, PendingOutcome), hits: u64, is_admitted: bool) {
    drop(outcome);
    assert!(fixture.counter.traffic.give_up(id, Some(Hits(hits))), "it was sent");
    if is_admitted {
        let (instances, now) = (fixture.instances, fixture.now);
        let sent = SentTry { generation: fixture.counter.generation().0, id };
        fixture.counter.among(instances).count_fallback(
            Direction::Take,
            OverLimitPolicy::Ignore,
            Hits(hits),
            false,
            now,
        );
        fixture.counter.note_answer(Delivery::OnWay(sent), Hits(hits), now);
    }
}

/// Sends three tries of `hits`. The callers of two leave, and each is answered without the store as it `admits`.
fn send_three(fixture: &mut Fixture, hits: u64, asks: TryKind, admits: [bool; 2]) -> Composed {
    let left = admits.map(|_| fixture.counter.add_try(Hits(hits), asks, None).expect("there is room"));
    fixture.ask(hits, asks);
    let composed = fixture.compose();
    left.into_iter().zip(admits).for_each(|(asked, admits)| leave(fixture, asked, hits, admits));
    composed
}

/// Otherwise a counter that always has an exchange on its way would remember all of them.
#[test]
fn a_reservation_that_was_given_up_is_forgotten_with_its_reply() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    let mut on_way = Composed::new();
    for _ in 0..5 {
        let asked = fixture.counter.add_try(Hits(5), reserve(1, 5), None).expect("there is room");
        let composed = fixture.compose();
        leave(&mut fixture, asked, 0, false);
        fixture.deliver(std::mem::replace(&mut on_way, composed));
        assert_eq!(fixture.counter.traffic.given_up().len(), 1);
    }
    fixture.deliver(on_way);
    assert!(fixture.counter.traffic.is_none());
    fixture.flush();
    assert_eq!(fixture.left_in_store(), 100);
}

/// Each hit counts once: what was admitted meanwhile is in the store, or reported. The second of three tries was.
#[test]
fn what_the_store_takes_is_first_for_callers_who_wait_and_goes_back_if_nobody_wants_it() {
    use Coordination::{Lease, Strict};
    use OverLimitPolicy::{Count, Ignore};
    // the room for three times 5 hits, of which the one who waits receives some; what counts at last
    for (mode, policy, room, used) in [
        (Lease, Ignore, 15, 95),
        (Lease, Ignore, 10, 100),
        (Strict, Ignore, 15, 95),
        (Strict, Ignore, 5, 105),
        (Strict, Count, 15, 100),
        (Strict, Count, 5, 110),
    ] {
        let mut fixture = Fixture::with_policy(&[fixed(100, 60)], 2, policy);
        fixture.counter.change_mode(mode);
        fixture.take_elsewhere(100 - room);
        let asks = if mode == Lease { TryKind::Lease(policy) } else { TryKind::Take(policy) };
        let composed = send_three(&mut fixture, 5, asks, [false, true]);
        fixture.deliver(composed);
        let is_over = told(&mut fixture).expect("it is decided").decision.over;
        assert!(!is_over, "{mode:?}, {policy:?}, {room}");
        fixture.flush();
        let stored = fixture.store.used(&fixture.counter.target, START);
        assert_eq!((fixture.counter.look(Hits(0), START).before.0, stored), (used, used), "{room}");
    }
}

/// Adds a give-back of 50 and a count of 40 in one request.
fn ask_together(fixture: &mut Fixture, all_or_none: bool) {
    let group = Some(Group { number: 1, all_or_none });
    let take = TryKind::Take(OverLimitPolicy::Ignore);
    for (hits, asks) in [(50, TryKind::GiveBack(fixture.now)), (40, take)] {
        let (_, outcome) = fixture.counter.add_try(Hits(hits), asks, group).expect("there is room");
        fixture.waiting.push(outcome);
    }
}

/// It is sent although its caller has left, and counted or written off as a report is.
#[test]
fn what_is_given_back_is_neither_lost_nor_given_back_twice_if_its_caller_leaves() {
    let (late, not_sent) = (RemoteError::TimedOut(SECOND), RemoteError::NotSent("the queue is full".into()));
    // the hits that may have counted, and those that are given back later
    for (failure, unknown, owed) in [(None, 0, 0), (Some(&late), 50, 0), (Some(&not_sent), 0, 50)] {
        for is_sent in [false, true] {
            let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
            fixture.counter.change_mode(Coordination::Strict);
            fixture.take_elsewhere(90);
            fixture.read();
            ask_together(&mut fixture, false);
            if !is_sent {
                fixture.waiting.clear();
            }
            let composed = fixture.compose();
            fixture.waiting.clear();
            let [(command, mut sent)]: [_; 1] = composed.try_into().expect("one");
            let reply = fixture.store.execute(&command, START);
            let outcome = failure.map_or(Ok((&reply, START)), Err);
            let not_known = fixture.counter.apply(&mut sent, outcome, &fixture.link());
            let taken = if is_sent { 40 } else { 0 };
            // a count that nobody waits for any more is given back
            let returned = if failure.is_none() { taken } else { owed };
            let taken = if unknown > 0 { taken } else { 0 };
            let is_right = (not_known, fixture.counter.ledger.owed().stranded);
            assert_eq!(is_right, (unknown + taken, returned), "{failure:?}, {is_sent}");
        }
    }
}
