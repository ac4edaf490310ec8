//! Reports: what they carry, and what becomes of them and of their replies.

use proptest::{option, prelude::*};

use super::*;
use crate::store::remote::TierSet;
use crate::{
    limit::{algorithm::CounterState, algorithm::FixedWindow},
    store::coordinated::{
        counter::{records::PendingDelta, reply::overshoot},
        delivery::SentTry,
    },
};

const SECOND: Period = Period::from_secs(1);

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
            fixture.execute(Exchange::of_hold(Hold { least: 1, want: hits, time: millis(hold) }));
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

    /// Hits are taken and leases returned in any order; the store learns the sum, and when the last hit was counted.
    #[test]
    fn one_report_says_the_same_as_several(steps in proptest::collection::vec((1..9_u64, any::<bool>()), 1..9)) {
        let leased: u64 = steps.iter().filter(|(_, is_unused)| *is_unused).map(|(hits, _)| hits).sum();
        let mut fixture = Fixture::new(&[fixed(1_000, 3_600)], 2);
        prop_assert_eq!(fixture.take_elsewhere(leased + 100), leased + 100);
        let (mut expected, mut last_taken) = (leased + 100, None);
        for (hits, is_unused) in steps {
            fixture.wait(millis(1));
            if is_unused {
                let delta = PendingDelta { unused: hits, unused_until: fixture.now, ..PendingDelta::of(0, START) };
                fixture.counter.push_pending(delta);
                expected -= hits;
            } else {
                let delta = PendingDelta::of(hits.try_into().expect("it is small"), fixture.now);
                fixture.counter.push_pending(delta);
                expected += hits;
                last_taken = Some(fixture.now);
            }
        }
        let commands = fixture.flush();
        // hits that were taken and returned need no report
        prop_assert!(commands.len() == 1 || (commands.is_empty() && expected == leased + 100));
        for command in &commands {
            let at = command.exchange.reports.last().map(|report| report.at);
            prop_assert!(last_taken.is_none() || at == last_taken);
        }
        prop_assert_eq!(u64::from(1_000 - fixture.left_in_store()), expected);
    }
}

#[test]
fn the_store_counts_leased_hits_and_the_estimate_does_not() {
    for tier in [sliding(100, 60), bucket(100, 60), fixed(100, 60)] {
        let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
        fixture.hold(6, millis(300));
        fixture.count(2);
        fixture.flush();
        assert_eq!((fixture.left_in_store(), fixture.counter.remaining(fixture.now)), (92, 98), "{tier}");
        fixture.read();
        assert_eq!(fixture.counter.remaining(fixture.now), 98, "{tier}");
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
    fixture.ask(8, Asks::Take(OverLimitPolicy::Ignore));
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
    fixture.ask(10, Asks::Lease(OverLimitPolicy::Ignore));
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
    fixture.ask(0, Asks::Look);
    let look = fixture.compose();
    fixture.ask(1, Asks::Take(OverLimitPolicy::Ignore));
    let (command, mut sent) = fixture.compose().pop().expect("a try");
    let (rejected, at) = (fixture.store.execute(&command, fixture.now), fixture.now);
    fixture.wait(millis(1));
    fixture.execute(Exchange::of_report(Report::of(fixture.now, -5)));
    fixture.deliver(look);
    fixture.counter.apply(&mut sent, Ok((&rejected, at)), &fixture.link());
    assert_eq!((rejected.taken[0], fixture.counter.remaining(fixture.now)), (0, 5));
}

/// The store may have taken them, or may take them yet.
#[test]
fn after_hits_of_unknown_delivery_any_state_is_adopted() {
    let known = |mode| {
        let mut fixture = Fixture::new(&[bucket(10, 60)], 2);
        fixture.counter.change_mode(mode);
        fixture.take_elsewhere(1);
        fixture.read();
        assert!(fixture.is_exact());
        fixture
    };
    let mut fixture = known(Coordination::Strict);
    let asks = Asks::Take(OverLimitPolicy::Ignore);
    let (id, outcome) = fixture.counter.add_try(false, Hits(1), asks, None).expect("there is room");
    let on_way = fixture.compose();
    drop(outcome);
    assert!(fixture.counter.give_up(id, Some(Hits(1))) && fixture.is_exact());
    fixture.counter.count_fallback(Direction::Take, Hits(1), false, fixture.now);
    let sent = SentTry { generation: fixture.counter.generation().0, id };
    fixture.counter.note_answer(Delivery::OnWay(sent), Hits(1), fixture.now);
    fixture.deliver(on_way);
    assert!(fixture.is_exact());
    assert_eq!((fixture.counter.remaining(fixture.now), fixture.left_in_store()), (8, 8));
    let evicted = SentTry { generation: sent.generation - 1, ..sent };
    for (delivery, is_known) in [
        (Delivery::NotApplied, true),
        (Delivery::OnWay(sent), true),
        (Delivery::OnWay(evicted), false),
        (Delivery::Unknown, false),
    ] {
        let mut fixture = known(Coordination::Lease);
        fixture.counter.count_fallback(Direction::Take, Hits(1), false, fixture.now);
        fixture.counter.note_answer(delivery, Hits(1), fixture.now);
        assert_eq!(fixture.is_exact(), is_known, "{delivery:?}");
    }
}

#[test]
fn hits_leased_in_one_window_are_not_taken_from_the_next() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.hold(6, Period::default());
    fixture.wait(Period::from_secs(60));
    fixture.take_elsewhere(10);
    fixture.read();
    assert_eq!(fixture.counter.remaining(fixture.now), 90);
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

/// The store would take them from what it grants.
#[test]
fn hits_are_given_back_after_the_reply_to_the_request_for_a_lease() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 1);
    let composed = fixture.request(20);
    fixture.give_back(50);
    assert!(fixture.counter.has_pending() && !fixture.counter.can_flush() && fixture.flush().is_empty());
    let granted = fixture.deliver(composed);
    assert!(granted > 20 && fixture.counter.can_flush());
    fixture.flush();
    assert_eq!(u64::from(fixture.left_in_store()), 100 - granted);
    assert_eq!(fixture.counter.remaining(fixture.now), 80);
}

#[test]
fn nothing_is_sent_twice_or_without_need() {
    let mut fixture = Fixture::new(&[sliding(100, 60)], 2);
    assert!(fixture.flush().is_empty());
    fixture.wait(SECOND);
    fixture.counter.last_check_at = fixture.now;
    fixture.counter.refresh(SECOND, fixture.now);
    fixture.wait(SECOND);
    fixture.count(2);
    fixture.wait(SECOND);
    fixture.count(3);
    // the reply to the report has the count too
    let commands = fixture.flush();
    let report = commands[0].exchange.reports.last().expect("hits were pending");
    assert_eq!((commands.len(), report.at), (1, fixture.now));
    assert!(fixture.flush().is_empty());
}

/// Others may have received the tokens that have flowed in since the hold.
#[test]
fn hits_of_a_bucket_are_not_returned_after_the_hold() {
    for (wait, returned) in [(400, 7), (600, 0)] {
        let mut fixture = Fixture::new(&[bucket(100, 10)], 2);
        fixture.hold(7, millis(300));
        fixture.counter.return_leases();
        fixture.wait(millis(wait));
        let (link, mut composed) = (fixture.link(), Vec::new());
        let send = |command, sent| composed.push((command, sent));
        let dropped = fixture.counter.compose(CounterKey::default(), &link, send);
        assert_eq!((dropped.stranded, dropped.unreported), (7 - returned, 0));
        let unused = composed.first().and_then(|(command, _)| command.exchange.reports.last()?.unused);
        assert_eq!(unused.map_or(0, |unused| unused.hits), returned, "after {wait} ms");
        assert_eq!(composed.is_empty(), returned == 0, "nothing is left to say");
    }
}

#[test]
fn reports_that_were_not_applied_are_pending_again_and_lost_ones_are_accounted_for() {
    let start = || {
        let mut fixture = Fixture::new(&[fixed(100, 60), fixed(1_000, 3_600)], 2);
        fixture.count(4);
        fixture.wait(Period::from_secs(60));
        fixture.count(5);
        let commands = fixture.take();
        let reports: Vec<usize> =
            commands.iter().map(|(command, _)| command.exchange.reports.len()).collect();
        assert_eq!(reports, [2], "one for each window, in one command");
        assert_eq!(fixture.counter.carried_hits().all(), 9);
        fixture.counter.end_command(fixture.counter.numbers.sent);
        fixture.counter.end_talk();
        fixture
    };
    let mut applied = start();
    let admitted = applied.counter.apply_delivery(Delivery::Applied);
    assert_eq!(admitted, 5, "the overshoot is that of the last window");
    assert!(applied.counter.is_settled());
    let mut kept = start();
    kept.counter.apply_delivery(Delivery::NotApplied);
    kept.count(1);
    let reports = kept.reports();
    assert_eq!(reports.iter().map(|report| report.change.hits).collect::<Vec<_>>(), [4, 6]);
    let mut lost = start();
    assert_eq!((lost.counter.apply_delivery(Delivery::Unknown), lost.counter.owed_hits().unreported), (0, 0));
    // a read that was not applied leaves nothing behind
    let mut read = Fixture::new(&[fixed(100, 60)], 2);
    read.counter.refresh(SECOND, read.now);
    let composed = read.take();
    assert!(composed.len() == 1 && !read.counter.is_settled());
    for (_, mut sent) in composed {
        let failed = RemoteError::NotSent("no connection".into());
        read.counter.apply(&mut sent, Err(&failed), &read.link());
    }
    assert!(read.counter.is_settled());
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
        assert!(fixture.counter.apply_reply_to(&reply(50), numbers[1], at(100)));
        let applied = fixture.counter.apply_reply_to(&reply(60), numbers[number - 1], at(ms));
        assert_eq!(applied, is_applied, "number {number} at {ms} ms");
        assert_eq!(fixture.counter.remaining(at(100)), if is_applied { 40 } else { 50 });
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
        let timed = |is_exact: bool, ms| Reply { at: is_exact.then(|| at(ms)), ..reply(60) };
        assert!(fixture.counter.apply_reply_to(&timed(first, 100), numbers[0], at(100)));
        let applied = fixture.counter.apply_reply_to(&timed(second, ms), numbers[1], at(ms));
        assert_eq!(applied, is_applied, "{first}, {second}, {ms} ms");
    }
    // what it has done is not in the estimate that the later one has left
    let mut fixture = Fixture::new(&[sliding(100, 60)], 2);
    let counters = [CounterState::unused(&sliding(100, 60), START)].into();
    let late = Reply { counters, own: TierSet(1), ..Reply::default() };
    // it is not that of a report
    fixture.counter.next_number();
    fixture.counter.apply_last_reply(&late, at(100));
    assert!(fixture.is_exact() && !fixture.counter.apply_last_reply(&late, at(10)) && !fixture.is_exact());
    // the count is read again
    let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
    fixture.count(1);
    let commands = fixture.take();
    let number = fixture.counter.next_number();
    fixture.counter.apply_reply_to(&reply(9), number, at(100));
    fixture.deliver(commands);
    assert!(fixture.counter.has_pending(), "the read");
    fixture.now = at(200);
    fixture.flush();
    assert!(!fixture.counter.has_pending());
    // one that does not fit the tiers is not applied
    assert!(!fixture.counter.apply_last_reply(&Reply::default(), at(300)));
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

#[test]
fn an_exchange_of_reports_alone_is_known_by_them() {
    let mut fixture = Fixture::new(&[fixed(50, 60)], 2);
    fixture.counter.choice.mode = Coordination::Interval;
    fixture.count(1);
    let counted_at = fixture.now;
    fixture.wait(millis(5));
    let reported = fixture.take();
    let state = |fixture: &Fixture| {
        let counter = &fixture.counter;
        (counter.has_ledger_on_way(), counter.is_silent(), counter.unanswered_since())
    };
    assert_eq!(reported.len(), 1);
    assert!(fixture.counter.rare.is_nothing());
    assert_eq!(state(&fixture), (true, false, Some(counted_at)));
    fixture.deliver(reported);
    assert_eq!(state(&fixture), (false, true, None));
    assert!(fixture.counter.is_settled());
}

/// A reply without a time, about a window that has begun by the store's clock, is of that window, and so is the decision.
#[test]
fn a_decision_is_of_the_window_that_has_counted_it() {
    let mut fixture = Fixture::new(&[fixed(10, 1)], 2);
    fixture.counter.change_mode(Coordination::Strict);
    fixture.wait(millis(999));
    fixture.ask(3, Asks::Take(OverLimitPolicy::Ignore));
    let (command, mut sent) = fixture.compose().pop().expect("a try");
    let begun = fixture.now.after(millis(1));
    let reply = Reply { at: None, ..fixture.store.execute(&command, begun) };
    fixture.counter.apply(&mut sent, Ok((&reply, fixture.now)), &fixture.link());
    let mut outcome = fixture.waiting.pop().expect("it waits");
    let tried = outcome.take_or_leave().expect("it is set").expect("it is decided");
    assert_eq!((tried.at, tried.decision.over), (begun, false));
    assert_eq!(fixture.counter.remaining(begun), 7);
}
