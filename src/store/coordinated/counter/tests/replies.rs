//! Replies: who is answered, and what becomes of the hits that they bring or take.

use super::*;
use crate::{
    limit::ReservationRequest,
    store::coordinated::{
        counter::TryOutcome,
        delivery::{Delivery, SentTry},
    },
};

const SECOND: Period = Period::from_secs(1);

const fn reserve(least: u64, want: u64) -> Asks {
    Asks::Reserve(ReservationRequest { least: Hits(least), want: Hits(want), hold: SECOND })
}

fn told(fixture: &mut Fixture) -> TryOutcome {
    fixture.waiting.pop().expect("it waits").take_or_leave().expect("it is told")
}

/// Gives up a try of `hits` that was sent, which are admitted without the store if it `is_admitted`.
fn leave(fixture: &mut Fixture, (id, outcome): (u32, Outcome), hits: u64, is_admitted: bool) {
    drop(outcome);
    assert!(fixture.counter.give_up(id, Some(Hits(hits))), "it was sent");
    if is_admitted {
        let (instances, now) = (fixture.instances, fixture.now);
        let sent = SentTry { generation: fixture.counter.generation().0, id };
        fixture.counter.among(instances).count_fallback(Direction::Take, Hits(hits), false, now);
        fixture.counter.note_answer(Delivery::OnWay(sent), Hits(hits), now);
    }
}

/// Sends three tries of `hits`. The callers of two leave, and each is answered without the store as it `admits`.
fn send_three(fixture: &mut Fixture, hits: u64, asks: Asks, admits: [bool; 2]) -> Composed {
    let left = admits.map(|_| fixture.counter.add_try(false, Hits(hits), asks, None).expect("there is room"));
    fixture.ask(hits, asks);
    let composed = fixture.compose();
    left.into_iter().zip(admits).for_each(|(asked, admits)| leave(fixture, asked, hits, admits));
    composed
}

/// A look without hits asks for none, so that none are rejected, whatever the store counts.
#[test]
fn under_strict_all_is_denied_once_the_store_has_rejected_a_hit_of_a_full_window() {
    let take = Asks::Take(OverLimitPolicy::Ignore);
    // the hits that count; those that are asked for, and how; whether they do not fit; whether all is denied
    for (used, hits, asks, over, is_denied) in [
        (8, 1, Asks::Look, false, false),
        (10, 0, Asks::Look, false, false),
        (11, 0, Asks::Look, true, false),
        (10, 1, Asks::Look, true, true),
        (9, 1, take, false, false),
        (10, 1, take, true, true),
    ] {
        let mut fixture = Fixture::new(&[fixed(10, 60)], 2);
        fixture.counter.change_mode(Coordination::Strict);
        fixture.wait(millis(50));
        fixture.read();
        fixture.execute(Exchange::of_report(Report::of(fixture.now, used)));
        fixture.ask(hits, asks);
        let (command, mut sent) = fixture.compose().pop().expect("one");
        // as Envoy's reference, which tells no time
        let reply = Reply { at: None, ..fixture.store.execute(&command, fixture.now) };
        fixture.counter.apply(&mut sent, Ok((&reply, fixture.now)), &fixture.link());
        let is_over = told(&mut fixture).expect("it is decided").decision.over;
        assert_eq!([is_over, fixture.counter.is_denied(fixture.now)], [over, is_denied], "{used}, {hits}");
    }
}

#[test]
fn an_exchange_whose_counter_was_evicted_answers_its_caller_and_accounts_for_what_it_holds() {
    let (short, not_sent) = (Reply::default(), RemoteError::NotSent("the queue is full".into()));
    // whether it is rejected and what is reserved, or why not; what is stranded; what may have counted
    for (asks, failure, decided, stranded, unknown) in [
        (Asks::Look, None, Ok((false, 0)), 2, 0),
        (reserve(2, 5), None, Ok((false, 3)), 0, 0),
        (reserve(4, 5), None, Ok((true, 0)), 0, 0),
        (Asks::Look, Some(Ok((&short, START))), Err(Delivery::Unknown), 0, 2),
        (Asks::Look, Some(Err(&not_sent)), Err(Delivery::NotApplied), 0, 0),
    ] {
        let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
        fixture.take_elsewhere(97);
        fixture.ask(1, asks);
        let (mut command, mut sent) = fixture.compose().pop().expect("one");
        sent.hold_more(&mut command, 2, SECOND);
        let reply = fixture.store.execute(&command, START);
        let applied = sent.decide_alone(failure.unwrap_or(Ok((&reply, START))));
        let told = told(&mut fixture).map(|tried| (tried.decision.over, tried.reserved.0));
        assert_eq!(told.map_err(|failed| failed.delivery), decided, "{asks:?}");
        assert_eq!((applied.dropped.stranded, applied.unknown), (stranded, unknown), "{asks:?}");
    }
}

/// Of two tries that were given up, one was admitted here meanwhile.
#[test]
fn when_an_exchange_fails_its_caller_is_told_and_no_hit_is_lost_or_counted_twice() {
    let (other, late) = (Reply::default(), RemoteError::TimedOut(SECOND));
    let not_sent = RemoteError::NotSent("the queue is full".into());
    // the hits that may have counted, and those that are reported again
    for (outcome, delivery, unknown, owed) in [
        (Err(&not_sent), Delivery::NotApplied, 0, 5 + 7),
        (Err(&late), Delivery::Unknown, 5 + 7 + 7 + 4, 0),
        (Ok((&other, START)), Delivery::Unknown, 7 + 7 + 4, 0),
    ] {
        let mut fixture = Fixture::new(&[sliding(100, 60)], 2);
        fixture.take_elsewhere(1);
        fixture.read();
        fixture.count(5);
        let asks = Asks::Take(OverLimitPolicy::Ignore);
        let mut composed = send_three(&mut fixture, 7, asks, [true, false]);
        let (mut command, mut sent) = composed.pop().expect("one");
        sent.hold_more(&mut command, 4, SECOND);
        let applied = fixture.counter.apply(&mut sent, outcome, &fixture.link());
        assert_eq!(told(&mut fixture).map_err(|failed| failed.delivery).err(), Some(delivery));
        let reported = fixture.counter.owed_hits().unreported;
        assert_eq!((applied.unknown, reported), (unknown, owed), "{delivery:?}");
        assert_eq!(fixture.is_exact(), delivery == Delivery::NotApplied);
        assert!(fixture.counter.rare.talk().is_none(), "nothing is on its way");
    }
}

/// Otherwise a counter that always has an exchange on its way would remember all of them.
#[test]
fn a_reservation_that_was_given_up_is_forgotten_with_its_reply() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    let mut on_way = Composed::new();
    for _ in 0..5 {
        let asked = fixture.counter.add_try(false, Hits(5), reserve(1, 5), None).expect("there is room");
        let composed = fixture.compose();
        leave(&mut fixture, asked, 0, false);
        fixture.deliver(std::mem::replace(&mut on_way, composed));
        assert_eq!(fixture.counter.rare.talk().expect("one is on its way").given_up().len(), 1);
    }
    fixture.deliver(on_way);
    assert!(fixture.counter.rare.talk().is_none());
    fixture.flush();
    assert_eq!(fixture.left_in_store(), 100);
}

/// Each hit counts once: what was admitted meanwhile is in the store, or reported. The second of three tries was.
#[test]
fn what_the_store_takes_is_first_for_callers_who_wait_and_goes_back_if_nobody_wants_it() {
    use Coordination::{Lease, Strict};
    use OverLimitPolicy::{Count, Ignore};
    // the room for three times 5 hits, of which the one who waits receives some; what is held; what counts at last
    for (mode, policy, room, kept, used) in [
        (Lease, Ignore, 15, 5, 95),
        (Lease, Ignore, 10, 0, 100),
        (Strict, Ignore, 15, 0, 95),
        (Strict, Ignore, 5, 0, 105),
        (Strict, Count, 15, 0, 100),
        (Strict, Count, 5, 0, 110),
    ] {
        let mut fixture = Fixture::with_policy(&[fixed(100, 60)], 2, policy);
        fixture.counter.change_mode(mode);
        fixture.take_elsewhere(100 - room);
        let asks = if mode == Lease { Asks::Lease(policy) } else { Asks::Take(policy) };
        let composed = send_three(&mut fixture, 5, asks, [false, true]);
        fixture.deliver(composed);
        let is_over = told(&mut fixture).expect("it is decided").decision.over;
        assert_eq!((is_over, fixture.counter.leased_hits()), (false, kept), "{mode:?}, {policy:?}, {room}");
        fixture.flush();
        let stored = fixture.store.used(&fixture.counter.target, START);
        assert_eq!((fixture.counter.look(Hits(0), START).before.0, stored), (used, used + kept), "{room}");
    }
}

/// The first is for more than is held, the caller of the second has left, and the store has to know of the third.
#[test]
fn what_is_granted_decides_the_tries_that_have_waited_for_it_as_far_as_it_goes() {
    let mut fixture = Fixture::new(&[fixed(1_000, 3_600)], 1);
    let composed = fixture.request(1);
    let [ignore, count] = [OverLimitPolicy::Ignore, OverLimitPolicy::Count].map(Asks::Lease);
    for (hits, asks) in [(200, ignore), (7, ignore), (1, count), (5, ignore), (120, ignore)] {
        fixture.ask(hits, asks);
    }
    drop(fixture.waiting.remove(2));
    // 125 are held with it
    assert_eq!((fixture.deliver(composed), fixture.counter.leased_hits()), (126, 0));
    let composed = fixture.compose();
    let runs = composed[0].1.runs.iter().map(|run| run.hits);
    assert_eq!(runs.collect::<Vec<_>>(), [200, 1]);
    fixture.deliver(composed);
    for mut outcome in fixture.waiting.drain(..) {
        let tried = outcome.take_or_leave().expect("it is told").expect("it is decided");
        assert!(!tried.decision.over);
    }
    assert_eq!(fixture.counter.look(Hits(0), START).before, Hits(1 + 5 + 120 + 200 + 1));
}

/// What is not reported yet is missing too, unless it is of the next window.
#[test]
fn a_decision_shows_what_is_left_beside_what_is_held() {
    let take = Asks::Take(OverLimitPolicy::Ignore);
    // whether 6 hits are held beside 10 of others; when, in seconds, 2 more are counted; what is left
    for (asks, is_held, late, remaining) in [
        (take, true, 0, 87),
        (take, false, 0, 89),
        (reserve(1, 5), true, 0, 79),
        (Asks::Look, false, 0, 88),
        (Asks::Look, false, 60, 90),
    ] {
        let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
        fixture.take_elsewhere(10);
        if is_held {
            fixture.hold(6, SECOND);
        }
        fixture.ask(1, asks);
        let (command, mut sent) = fixture.compose().pop().expect("one");
        let reply = fixture.store.execute(&command, START);
        fixture.wait(Period::from_secs(late));
        fixture.count(2);
        fixture.counter.apply(&mut sent, Ok((&reply, START)), &fixture.link());
        let tried = told(&mut fixture).expect("it is decided");
        assert_eq!(tried.decision.remaining, remaining, "{asks:?}, {is_held}, {late}");
    }
}

/// Adds a give-back of 50 and a count of 40 in one request.
fn ask_together(fixture: &mut Fixture, all_or_none: bool) {
    let group = Some(fixture.counter.new_group(all_or_none));
    let take = Asks::Take(OverLimitPolicy::Ignore);
    for (hits, asks) in [(50, Asks::GiveBack(fixture.now)), (40, take)] {
        let (_, outcome) = fixture.counter.add_try(false, Hits(hits), asks, group).expect("there is room");
        fixture.waiting.push(outcome);
    }
}

#[test]
fn the_tries_of_one_request_leave_in_one_command() {
    for tier in [fixed(10_000, 60), sliding(10_000, 60)] {
        let mut fixture = Fixture::new(&[tier], 2);
        fixture.counter.change_mode(Coordination::Strict);
        let take = Asks::Take(OverLimitPolicy::Ignore);
        for hits in 1..63 {
            fixture.ask(hits, take);
        }
        ask_together(&mut fixture, false);
        fixture.ask(40, take);
        ask_together(&mut fixture, true);
        fixture.ask(40, take);
        let composed = fixture.compose();
        let runs = composed.iter().map(|(command, _)| {
            let runs = command.exchange.runs.iter().map(|run| (run.direction, run.hits, run.tries));
            (command.exchange.all_or_none, runs.collect::<Vec<_>>())
        });
        let runs: Vec<_> = runs.filter(|(_, runs)| runs.iter().any(|(_, hits, _)| *hits >= 40)).collect();
        let of = |tries| vec![(Direction::GiveBack, 50, 1), (Direction::Take, 40, tries)];
        let last = runs.len() - 3;
        assert_eq!(runs[last..], [(false, of(2)), (true, of(1)), (false, vec![(Direction::Take, 40, 1)])]);
        fixture.deliver(composed);
        let decided = fixture.waiting.into_iter().map(|mut outcome| outcome.take_or_leave());
        assert!(decided.flatten().flatten().all(|tried| !tried.decision.over));
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
            let applied = fixture.counter.apply(&mut sent, outcome, &fixture.link());
            let taken = if is_sent { 40 } else { 0 };
            // a count that nobody waits for any more is given back
            let returned = if failure.is_none() { taken } else { owed };
            let taken = if unknown > 0 { taken } else { 0 };
            let is_right = (applied.unknown, fixture.counter.owed_hits().stranded);
            assert_eq!(is_right, (unknown + taken, returned), "{failure:?}, {is_sent}");
        }
    }
}

#[test]
fn of_tries_that_count_all_or_none_a_rejected_one_leaves_the_count_as_it_was() {
    for tier in [fixed(70, 60), sliding(70, 60)] {
        let mut fixture = Fixture::new(&[tier], 2);
        fixture.counter.change_mode(Coordination::Strict);
        fixture.execute(Exchange::of_report(Report::of(fixture.now, 90)));
        ask_together(&mut fixture, true);
        let composed = fixture.compose();
        fixture.deliver(composed);
        let [back, taken] = [0; 2].map(|_| fixture.waiting.remove(0).take_or_leave());
        let [back, taken] = [back, taken].map(|told| told.expect("it is told").expect("it is decided"));
        assert!(!back.is_counted && taken.decision.over && !taken.is_counted, "{back:?} {taken:?}");
        assert_eq!(fixture.counter.look(Hits(0), START).before, Hits(90));
    }
}
