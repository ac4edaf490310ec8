//! What pending records say, and what becomes of several of them.

use super::*;
use crate::counter::ledger::PendingDelta;
use weir_limit::algorithm::{CounterState, FixedWindow};

fn at(millis: u64) -> Timestamp {
    START.after(Period::from_millis(millis))
}

#[test]
fn leased_hits_that_one_window_gives_back_are_not_reported_with_those_of_the_next() {
    let mut fixture = Fixture::new(&[fixed(100, 60), fixed(1_000, 3_600)], 2);
    fixture.grant_lease(7, Period::default());
    fixture.counter.return_leases();
    fixture.wait(Period::from_secs(60));
    fixture.count(2);
    let reports = fixture.reports();
    let unused = |report: &Report| report.unused.map_or(0, |unused| unused.hits);
    let said: Vec<_> = reports.iter().map(|report| (unused(report), report.change.hits)).collect();
    assert_eq!(said, [(7, 0), (0, 2)]);
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

/// The window lets the returned hits go at the earliest of their ends. At the latest end, the hit that was used would
/// be let go in the place of one that was not, and more than the limit would pass in a period.
#[test]
fn returns_of_different_ends_let_no_used_hit_go_early() {
    let mut fixture = Fixture::new(&[sliding(6, 12)], 2);
    fixture.now = START.after(millis(400));
    assert_eq!(fixture.lease(1), 1);
    let taken_at = fixture.now;
    fixture.grant_lease(4, Period::from_secs(3));
    fixture.now = START.after(millis(1_900));
    fixture.counter.uncount(Hits(1), taken_at);
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
