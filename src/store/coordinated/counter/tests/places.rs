//! Where a counter is queued.

use crate::store::coordinated::counter::{QueuePlace, Slot, Turn, Urgency};

#[test]
fn a_counter_is_due_for_what_is_less_urgent_too() {
    let mut place = QueuePlace::default();
    assert!(!place.is_due_for(Urgency::Lease), "it needs no attention");
    assert!(place.make_due(Slot::of(9), Urgency::Interval));
    let less = [Urgency::Lease, Urgency::Outage, Urgency::Pause, Urgency::Interval];
    assert_eq!(less.map(|urgency| place.is_due_for(urgency)), [true; 4]);
    let more = [Urgency::Tick, Urgency::Now];
    assert_eq!(more.map(|urgency| place.is_due_for(urgency)), [false, false]);
    // the next hit that is as urgent need not find out that the counter is due earlier
    assert!(!place.make_due(Slot::of(9), Urgency::Tick));
    assert_eq!(more.map(|urgency| place.is_due_for(urgency)), [true, false]);
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

#[test]
fn the_order_of_slots_outlasts_the_end_of_their_numbers() {
    assert_eq!(size_of::<QueuePlace>(), 12);
    for start in [0, (1 << 24) - 2, (7 << 24) - 1] {
        let (slot, next, far) = (Slot::of(start), Slot::of(start + 1), Slot::of(start + (1 << 23) - 1));
        assert_eq!((next.is_after(slot), slot.is_after(next), slot.is_after(slot)), (true, false, false));
        assert_eq!((far.is_after(slot), slot.is_after(far)), (true, false));
        assert_eq!(far.distance_from(slot), (1 << 23) - 1);
    }
}
