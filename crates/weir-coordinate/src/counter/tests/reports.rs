//! Reports: what they carry, and what becomes of them and of their replies.

use proptest::{option, prelude::*};

use super::*;
use crate::counter::{ledger::PendingDelta, reply::overshoot};
use weir_limit::algorithm::{CounterState, FixedWindow};

/// Returns the times and counts that show how `state` develops from `now` on.
fn course(tier: &Tier, state: &CounterState, now: Timestamp) -> Vec<(u64, u32)> {
    let at = |i| now.after(Period::from_nanos(tier.period.as_nanos() / 16 * i));
    let shown = |at| (state.probe(tier, at, Hits(0)).used.0, state.availability(tier, at).remaining);
    (0..40).map(|i| shown(at(i))).collect()
}

proptest! {
    #[test]
    fn a_pending_change_affects_the_estimate_as_its_report_affects_the_store(
        algorithm in 0..4_usize,
        before in proptest::collection::vec((0..20_000_u64, 1..6_u64), 0..5),
        first in 0..20_000_u64,
        lasted in 0..3_000_u64,
        hits in -6..10_i64,
        (unused, hold) in (0..5_u64, 0..900_u64),
        rejected in option::of(0..21_000_u64),
    ) {
        let tier = [fixed(50, 10), sliding(50, 10), bucket(50, 100), strict_bucket(50, 100)][algorithm].clone();
        let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
        let at = |ms: u64| START.after(millis(ms));
        let mut sorted = before;
        sorted.sort_unstable();
        for (ms, hits) in sorted {
            fixture.now = at(ms);
            fixture.execute(Exchange::of_lease(LeaseRequest { least: 1, want: hits, hold: millis(hold) }));
        }
        fixture.now = at(21_000);
        let mut delta = PendingDelta::of(hits, at(first));
        // a delta is of one window
        delta.last_at = at(first + lasted);
        if tier.algorithm == Algorithm::FixedWindow {
            delta.last_at = delta.last_at.min(Timestamp::from_nanos(at(first).window_end(tier.period).as_nanos() - 1));
        }
        delta.last_at = delta.last_at.min(fixture.now);
        (delta.unused, delta.unused_until) = (unused, at(first + hold));
        delta.rejected_at = rejected.map_or(Timestamp::default(), at);
        let read = |fixture: &mut Fixture| fixture.execute(Exchange::read()).counters[0].clone();
        let mut state = read(&mut fixture);
        delta.apply(&tier, &mut state, fixture.now);
        fixture.execute(Exchange::of_report(delta.report()));
        let stored = read(&mut fixture);
        prop_assert_eq!(course(&tier, &state, fixture.now), course(&tier, &stored, fixture.now));
    }
}

/// A reply to an earlier command that was carried out after the report counts the report already.
#[test]
fn a_reply_that_overtakes_that_to_a_report_leaves_no_exact_estimate() {
    let mut fixture = Fixture::new(&[sliding(10, 60)], 3);
    fixture.counter.change_mode(Coordination::Strict);
    fixture.take_elsewhere(1);
    fixture.read();
    // it does not fit
    fixture.ask(8, TryKind::Take(OverLimitPolicy::Ignore));
    let beside = fixture.compose();
    fixture.count(2);
    let reported = fixture.take();
    let carry_out = |fixture: &mut Fixture, composed: Composed| {
        fixture.wait(millis(1));
        let now = fixture.now;
        let execute = |(command, sent)| (fixture.store.execute(&command, now), sent, now);
        composed.into_iter().map(execute).collect::<Vec<_>>()
    };
    let reported = carry_out(&mut fixture, reported);
    let beside = carry_out(&mut fixture, beside);
    for (reply, mut sent, at) in beside.into_iter().chain(reported) {
        fixture.counter.apply(&mut sent, Ok((&reply, at)), &fixture.link());
    }
    assert!(!fixture.is_exact());
    fixture.flush();
    assert_eq!((fixture.counter.remaining(fixture.now), fixture.left_in_store()), (7, 7));
    assert!(fixture.is_exact());
}

/// It is only guessed whether the reply beside the report has what was reported.
#[test]
fn an_estimate_that_was_replaced_before_the_reply_to_a_report_is_taken_from_that() {
    let mut fixture = Fixture::new(&[sliding(10, 60)], 2);
    fixture.take_elsewhere(1);
    fixture.read();
    fixture.count(2);
    let reported = fixture.take();
    fixture.counter.lose_exactness();
    // one that does not fit, and changes nothing
    fixture.ask(10, TryKind::Lease(OverLimitPolicy::Ignore));
    let beside = fixture.compose();
    assert_eq!(beside.len(), 1);
    fixture.deliver(beside);
    assert!(!fixture.is_exact());
    fixture.wait(millis(1));
    fixture.deliver(reported);
    assert_eq!((fixture.counter.remaining(fixture.now), fixture.left_in_store()), (7, 7));
    assert!(fixture.is_exact());
}

/// The local cache needs the counts of a rejection, but not if the store has counted fewer since.
#[test]
fn a_rejection_that_a_later_reply_has_overtaken_changes_nothing() {
    let mut fixture = Fixture::new(&[fixed(10, 60)], 2);
    fixture.counter.change_mode(Coordination::Strict);
    fixture.take_elsewhere(10);
    fixture.ask(0, TryKind::Look);
    let look = fixture.compose();
    fixture.ask(1, TryKind::Take(OverLimitPolicy::Ignore));
    let (command, mut sent) = fixture.compose().pop().expect("a try");
    let (rejected, at) = (fixture.store.execute(&command, fixture.now), fixture.now);
    fixture.wait(millis(1));
    fixture.execute(Exchange::of_report(Report::of(fixture.now, -5)));
    fixture.deliver(look);
    fixture.counter.apply(&mut sent, Ok((&rejected, at)), &fixture.link());
    assert_eq!((rejected.taken[0], fixture.counter.remaining(fixture.now)), (0, 5));
}

/// The store might give back hits that it grants meanwhile, and that this instance then holds.
#[test]
fn a_lease_is_requested_after_the_reply_to_a_report_that_gives_hits_back() {
    for (gives_back, must_wait) in [(false, false), (true, true)] {
        let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
        fixture.count(5);
        if gives_back {
            fixture.flush();
            fixture.give_back(9);
        }
        let composed = fixture.take();
        let asked = fixture.request(1);
        assert_eq!((composed.len(), asked.is_empty()), (1, must_wait));
        fixture.deliver(composed);
        assert_eq!(fixture.counter.can_send_tries(&fixture.link()), must_wait);
    }
}

/// Others may have received the tokens that have flowed in since the hold.
#[test]
fn hits_of_a_bucket_are_not_returned_after_the_hold() {
    for (wait, returned) in [(400, 7), (600, 0)] {
        let mut fixture = Fixture::new(&[bucket(100, 10)], 2);
        fixture.grant_lease(7, millis(300));
        fixture.counter.return_leases();
        fixture.wait(millis(wait));
        let dropped = fixture.counter.drop_ended(fixture.now);
        let composed = fixture.compose();
        assert_eq!((dropped.stranded, dropped.unreported), (7 - returned, 0));
        let unused = composed.first().and_then(|(command, _)| command.exchange.reports.last()?.unused);
        assert_eq!(unused.map_or(0, |unused| unused.hits), returned, "after {wait} ms");
        assert_eq!(composed.is_empty(), returned == 0, "nothing is left to say");
    }
}

/// The reply to a command that was carried out earlier knows less. Times of replies that do not carry them are 20 ms inexact.
#[test]
fn a_reply_that_a_later_one_has_overtaken_changes_nothing() {
    let tier = fixed(100, 60);
    let reply = |used| Reply {
        counters: [CounterState::FixedWindow(FixedWindow::new(
            START.after(Period::from_secs(60)),
            Hits(used),
        ))]
        .into(),
        ..Reply::default()
    };
    let at = |ms| START.after(millis(ms));
    // the number of the reply after number 2, which came at 100 ms with 50 hits; its instant; whether it is applied
    for (number, ms, is_applied) in [
        (1, 100, false),
        (1, 90, false),
        (1, 101, true),
        (3, 100, true),
        (3, 80, true),
        (3, 79, false),
        (2, 100, true),
    ] {
        let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
        let numbers =
            [fixture.counter.next_number(), fixture.counter.next_number(), fixture.counter.next_number()];
        fixture.counter.apply_reply_to(&reply(50), numbers[1], at(100));
        fixture.counter.apply_reply_to(&reply(60), numbers[number - 1], at(ms));
        let remaining = if is_applied { 40 } else { 50 };
        assert_eq!(fixture.counter.remaining(at(100)), remaining, "number {number} at {ms} ms");
    }
    // those of two replies that carry it are exact
    for (first, second, ms, is_applied) in [
        (true, true, 99, false),
        (true, true, 100, true),
        (true, false, 80, true),
        (false, true, 80, true),
        (false, true, 79, false),
    ] {
        let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
        let numbers = [fixture.counter.next_number(), fixture.counter.next_number()];
        let timed = |is_exact: bool, used, ms| Reply { at: is_exact.then(|| at(ms)), ..reply(used) };
        fixture.counter.apply_reply_to(&timed(first, 50, 100), numbers[0], at(100));
        fixture.counter.apply_reply_to(&timed(second, 60, ms), numbers[1], at(ms));
        let remaining = if is_applied { 40 } else { 50 };
        assert_eq!(fixture.counter.remaining(at(100)), remaining, "{first}, {second}, {ms} ms");
    }
}

/// All of it, up to what this instance has admitted, since the hits counted last are the excess.
#[test]
fn the_overshoot_is_what_the_store_counts_above_a_limit() {
    let tiers = [fixed(100, 60), fixed(150, 3_600)];
    let reply = |used: [u64; 2]| Reply {
        counters: tiers
            .iter()
            .zip(used)
            .map(|(tier, used)| {
                CounterState::FixedWindow(FixedWindow::new(START.window_end(tier.period), Hits(used)))
            })
            .collect(),
        ..Reply::default()
    };
    for (used, admitted, over) in [
        ([100, 150], 9, 0),
        ([101, 150], 9, 1),
        ([104, 150], 9, 4),
        ([104, 157], 9, 7),
        ([130, 0], 9, 9),
        ([20, 152], 1, 1),
    ] {
        assert_eq!(overshoot(&reply(used), &tiers, admitted, START), over, "{used:?}");
    }
}

/// A reply without a time, about a window that has begun by the store's clock, is of that window, and so is the decision.
#[test]
fn a_decision_is_of_the_window_that_has_counted_it() {
    let mut fixture = Fixture::new(&[fixed(10, 1)], 2);
    fixture.counter.change_mode(Coordination::Strict);
    fixture.wait(millis(999));
    fixture.ask(3, TryKind::Take(OverLimitPolicy::Ignore));
    let (command, mut sent) = fixture.compose().pop().expect("a try");
    let begun = fixture.now.after(millis(1));
    let reply = Reply { at: None, ..fixture.store.execute(&command, begun) };
    fixture.counter.apply(&mut sent, Ok((&reply, fixture.now)), &fixture.link());
    let mut outcome = fixture.waiting.pop().expect("it waits");
    let tried = outcome.take_or_leave().expect("it is set").expect("it is decided");
    assert_eq!((tried.at, tried.decision.over), (begun, false));
    assert_eq!(fixture.counter.remaining(begun), 7);
}
