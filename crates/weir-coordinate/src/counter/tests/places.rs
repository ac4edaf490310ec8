//! When a counter is due.

use crate::counter::{QueuePlace, Urgency};

#[test]
fn a_counter_is_due_for_what_is_less_urgent_too() {
    let mut place = QueuePlace::default();
    assert!(!place.is_due_for(Urgency::Idle), "it needs no attention");
    assert!(place.make_due(9, Urgency::Interval));
    let less = [Urgency::Idle, Urgency::Pause, Urgency::Interval];
    assert_eq!(less.map(|urgency| place.is_due_for(urgency)), [true; 3]);
    let more = [Urgency::Tick, Urgency::Now];
    assert_eq!(more.map(|urgency| place.is_due_for(urgency)), [false, false]);
    // the next hit that is as urgent need not find out that the counter is due earlier
    assert!(!place.make_due(9, Urgency::Tick));
    assert_eq!(more.map(|urgency| place.is_due_for(urgency)), [true, false]);
    assert!(place.make_due(8, Urgency::Idle), "earlier");
}

/// One of the same key was evicted while it was due.
#[test]
fn the_turn_of_an_evicted_counter_is_not_that_of_its_successor() {
    let mut place = QueuePlace::default();
    assert!(!place.take_turn(9));
    assert!(place.make_due(9, Urgency::Pause));
    assert!(!place.take_turn(8));
    assert!(place.take_turn(9) && !place.take_turn(9), "once");
}
