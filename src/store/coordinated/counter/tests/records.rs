//! What pending records say, and what becomes of several of them.

use super::*;
use crate::{
    limit::{NANOS_PER_SECOND, algorithm::CounterState, algorithm::FixedWindow},
    store::coordinated::counter::records::PendingDelta,
};

fn at(millis: u64) -> Timestamp {
    START.after(Period::from_millis(millis))
}

#[test]
fn a_report_of_hits_says_nothing_of_leases_and_rejected_tries() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.count(3);
    let reports = fixture.reports();
    assert_eq!((reports[0].change.hits, reports[0].unused, reports[0].rejected_at), (3, None, None));
}

/// No window counts the try, so that one report is enough.
#[test]
fn a_rejected_try_is_reported_with_the_hits_of_the_next_window() {
    let mut fixture = Fixture::new(&[fixed(100, 60), strict_bucket(10, 100)], 2);
    fixture.wait(millis(59_000));
    fixture.count(10);
    fixture.flush();
    fixture.wait(millis(500));
    let tried_at = fixture.now;
    assert!(fixture.count(1).over);
    fixture.wait(Period::from_secs(30));
    assert!(!fixture.count(1).over);
    let reports = fixture.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].rejected_at, reports[0].change.hits), (Some(tried_at), 1));
    assert_eq!(reports[0].at, fixture.now);
}

#[test]
fn leased_hits_that_one_window_gives_back_are_not_reported_with_those_of_the_next() {
    let mut fixture = Fixture::new(&[fixed(100, 60), fixed(1_000, 3_600)], 2);
    fixture.hold(7, Period::default());
    fixture.counter.return_leases();
    fixture.wait(Period::from_secs(60));
    fixture.count(2);
    let reports = fixture.reports();
    let unused = |report: &Report| report.unused.map_or(0, |unused| unused.hits);
    let said: Vec<_> = reports.iter().map(|report| (unused(report), report.change.hits)).collect();
    assert_eq!(said, [(7, 0), (0, 2)]);
}

/// It would count as of an instant at which nothing was counted.
#[test]
fn a_check_without_hits_does_not_move_pending_ones() {
    let mut fixture = Fixture::new(&[sliding(100, 60)], 2);
    let counted_at = fixture.now;
    fixture.count(2);
    fixture.wait(millis(40));
    fixture.count(0);
    assert_eq!(fixture.reports()[0].at, counted_at);
}

#[test]
fn pending_hits_count_in_their_own_window_and_begin_the_next() {
    let tier = fixed(100, 60);
    let window = |end: u64, hits| {
        CounterState::FixedWindow(FixedWindow::new(START.after(Period::from_secs(end)), Hits(hits)))
    };
    // the end of the known window in seconds, the instant of the hits, and the used ones then
    for (end, counted, used) in [(60, 30_000, 12), (60, 59_999, 12), (60, 60_000, 2), (120, 30_000, 10)] {
        let mut state = window(end, 10);
        let now = at(counted.max((end - 60) * 1_000));
        PendingDelta::of(2, at(counted)).apply(&tier, &mut state, now);
        assert_eq!(state.probe(&tier, now, Hits(0)).used, Hits(used), "{counted} ms, window to {end} s");
    }
}

/// A rejected try loses the fraction of the next token that has returned until then.
#[test]
fn a_try_before_the_last_hit_restarts_the_refill_at_its_own_instant() {
    // a token each two seconds
    let tier = strict_bucket(50, 100);
    let mut state = CounterState::unused(&tier, at(0));
    state.take(&tier, at(0), Hits(10));
    let delta = PendingDelta { rejected_at: at(1_000), ..PendingDelta::of(1, at(1_500)) };
    delta.apply(&tier, &mut state, at(1_500));
    let left = |millis| state.availability(&tier, at(millis)).remaining;
    assert_eq!([left(2_999), left(3_000)], [39, 40]);
}

/// The hits of the others, the second hit of a span and the lease of this instance do not make a hit count for longer.
#[test]
fn a_hit_beside_the_adopted_hits_of_others_and_an_unused_lease_counts_for_its_own_period() {
    let tier = sliding(100, 60);
    let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
    // not the state that this instance knows
    assert_eq!(fixture.take_elsewhere(3), 3);
    fixture.wait(Period::from_secs(10));
    fixture.hold(9, millis(500));
    assert_eq!(fixture.counter.remaining(fixture.now), 97);
    fixture.wait(millis(10));
    assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
    let end = fixture.now.after(tier.period);
    assert_eq!(fixture.counter.remaining(Timestamp::from_nanos(end.as_nanos() - 1)), 99);
    assert_eq!(fixture.counter.remaining(end), 100);
    // those of the others still count for theirs
    let end = START.after(tier.period);
    assert_eq!(fixture.counter.remaining(Timestamp::from_nanos(end.as_nanos() - 1)), 96);
    assert_eq!(fixture.counter.remaining(end), 99);
}

#[test]
fn the_next_flush_follows_from_what_others_have_used() {
    let mut fixture = Fixture::new(&[fixed(100_000, 3_600)], 2);
    fixture.read();
    assert_eq!(fixture.counter.plan.schedule.pause(), Period::from_secs(1), "nobody uses it");
    fixture.wait(Period::from_secs(10));
    fixture.take_elsewhere(20_000);
    fixture.read();
    // 80,000 are left at 2,000 a second, and a fiftieth of that time
    let pause = fixture.counter.plan.schedule.pause().as_nanos();
    assert!((7 * NANOS_PER_SECOND / 10..=9 * NANOS_PER_SECOND / 10).contains(&pause), "{pause} ns");
}

/// The window lets the returned hits go at the earliest of their ends. At the latest end, the hit that was used would
/// be let go in the place of one that was not, and more than the limit would pass in a period.
#[test]
fn returns_of_different_ends_let_no_used_hit_go_early() {
    let mut fixture = Fixture::new(&[sliding(6, 12)], 2);
    fixture.now = START.after(millis(400));
    assert_eq!(fixture.lease(1), 1);
    let taken_at = fixture.now;
    fixture.hold(4, Period::from_secs(3));
    fixture.now = START.after(millis(1_900));
    fixture.counter.unspend(Hits(1), taken_at);
    fixture.now = START.after(millis(2_200));
    assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
    fixture.now = START.after(millis(5_000));
    fixture.counter.return_leases();
    // the estimate cannot replace the store's state
    assert_eq!(fixture.take_elsewhere(1), 1);
    fixture.flush();
    assert_eq!(fixture.take_elsewhere(4), 4);
    // the used hit counts until 14.2 s
    fixture.now = START.after(millis(13_100));
    assert_eq!(fixture.take_elsewhere(1), 0);
}
