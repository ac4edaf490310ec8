//! Fixed windows that a calendar cuts.

use weir_limit::{
    Calendar, CalendarUnit, CalendarWindows, Hits, OverLimitPolicy, Period, Tier, Timestamp, Unit,
    algorithm::{CountChange, CounterState},
};

const HOUR: u64 = 3_600;

/// The present window is the third.
fn tier(unit: CalendarUnit, edges: &[u64]) -> Tier {
    let edges: Vec<Timestamp> = edges.iter().map(|edge| at(*edge)).collect();
    let windows = CalendarWindows::in_force(Calendar::new(unit), &edges, edges[2]).expect("enough edges");
    Tier::of_calendar(5, windows)
}

/// Days, of which the third has 25 hours. All begin so many seconds later.
fn days(later: u64) -> Tier {
    let edge = |day: u64| 1_000_000 + later + 24 * HOUR * day + if day > 2 { HOUR } else { 0 };
    tier(CalendarUnit::Day, &[0, 1, 2, 3, 4, 5, 6, 7].map(edge))
}

const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// Returns the hits that a day of 25 hours counts, and when it ends.
fn spent(day: &Tier, from: Timestamp) -> CounterState {
    let mut state = CounterState::unused(day, from);
    for _ in 0..5 {
        assert!(!state.decide(day, OverLimitPolicy::Ignore, Hits(1), from).over);
    }
    state
}

#[test]
fn a_window_lasts_from_edge_to_edge() {
    let (day, start) = (days(0), at(1_000_000 + 48 * HOUR));
    let mut state = spent(&day, start);
    let last = start.after(Period::from_secs(25 * HOUR - 1));
    assert_eq!(state.wait(&day, last, Hits(1)), Period::from_secs(1));
    assert!(state.decide(&day, OverLimitPolicy::Ignore, Hits(1), last).over);
    let next = start.after(Period::from_secs(25 * HOUR));
    assert!(!state.decide(&day, OverLimitPolicy::Ignore, Hits(1), next).over);
    assert_eq!(state.availability(&day, next).reset, Period::from_secs(24 * HOUR));
    // a clock that steps back finds the window that is open
    assert_eq!(state.availability(&day, last).remaining, 4);
}

#[test]
fn a_reload_that_moves_the_window_begins_another_counter() {
    let (day, start) = (days(0), at(1_000_000 + 48 * HOUR + 7));
    let (mut kept, mut moved) = (spent(&day, start), spent(&day, start));
    // put in force in the next window, and of another zone with the same edges
    let edges: Vec<u64> = (1..10).map(|i| 1_000_000 + 24 * HOUR * i + if i > 2 { HOUR } else { 0 }).collect();
    let later = tier(CalendarUnit::Day, &edges);
    assert!(kept.decide(&later, OverLimitPolicy::Ignore, Hits(1), start).over);
    let other = days(HOUR);
    assert_eq!(moved.availability(&other, start).remaining, 5);
    assert!(!moved.decide(&other, OverLimitPolicy::Ignore, Hits(3), start).over);
    assert_eq!(moved.availability(&other, start).remaining, 2);
    // what was counted elsewhere joins the window of its instant
    let mut reported = spent(&day, start);
    reported.add(&other, start, CountChange::of(2), start);
    assert_eq!(reported.availability(&other, start).remaining, 3);
    reported.put_back(&other, start, start, Hits(1));
    assert_eq!(reported.availability(&other, start).remaining, 4);
}

#[test]
fn counters_of_calendars_are_others_than_those_of_periods() {
    let (day, fixed) = (days(0), Tier::fixed_window(5, Period::from_secs(24 * HOUR)));
    assert!(!day.shares_counter(&fixed) && day.shares_counter(&days(HOUR)));
    let week = tier(CalendarUnit::Week, &[0, 1, 2, 3, 4, 5, 6, 7].map(|week| 7 * 24 * HOUR * week));
    assert!(!day.shares_counter(&week));
}

#[test]
fn the_reported_unit_is_that_of_a_window_of_its_length() {
    let of = |unit, hours: u64| tier(unit, &[0, 1, 2, 3, 4, 5, 6, 7].map(|i| hours * HOUR * i)).unit();
    assert_eq!(of(CalendarUnit::Day, 24), Some(Unit::Day));
    assert_eq!([23, 25].map(|hours| of(CalendarUnit::Day, hours)), [None, None]);
    assert_eq!((of(CalendarUnit::Week, 168), of(CalendarUnit::Week, 167)), (Some(Unit::Week), None));
    // readers take a month for 30 days, and a year for 365
    assert_eq!((of(CalendarUnit::Month, 30 * 24), of(CalendarUnit::Year, 365 * 24)), (None, None));
    assert_eq!(days(0).length(), Period::from_secs(25 * HOUR));
    assert!(days(0).longest_wait() > days(0).length());
}
