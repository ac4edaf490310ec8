//! Where a counter is queued.

use crate::store::coordinated::counter::{QueuePlace, Slot, Turn, Urgency};

#[test]
fn a_counter_is_due_for_what_is_less_urgent_too() {
    let mut place = QueuePlace::default();
    assert!(!place.is_due_for(Urgency::Lease), "it needs no attention");
    assert!(place.make_due(Slot::of(9), Urgency::Interval));
    let due_for = [Urgency::Lease, Urgency::Pause, Urgency::Interval, Urgency::Tick, Urgency::Now];
    assert_eq!(due_for.map(|urgency| place.is_due_for(urgency)), [true, true, true, false, false]);
}

/// One of the same key was evicted while it was due at once.
#[test]
fn the_turn_of_an_evicted_counter_is_not_that_of_its_successor() {
    let mut place = QueuePlace::default();
    assert_eq!(place.take_turn(None), Turn::Passed);
    let slot = Slot::of(9);
    assert!(place.make_due(slot, Urgency::Pause));
    place.queue(slot);
    assert_eq!(place.take_turn(None), Turn::Passed);
    assert_eq!(place.take_turn(Some(slot)), Turn::Due);
    assert_eq!(place.take_turn(Some(slot)), Turn::Passed, "once");
}
