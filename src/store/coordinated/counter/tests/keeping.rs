//! Facts that few counters have: each goes without the others.

use super::*;

/// Returns a counter that knows something of each kind.
fn full() -> Fixture {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.hold(4, Period::default());
    fixture.counter.count_fallback(2, Direction::Take, Hits(3), true, fixture.now);
    let mut sibling = Fixture::new(&[fixed(100, 60), fixed(1_000, 3_600)], 2);
    sibling.count(1);
    fixture.counter.set_siblings(vec![sibling.counter.sibling_hits()]);
    fixture
}

/// Returns the hits that are left as if every instance counted the same ones, if they are known.
fn left_without_store(fixture: &mut Fixture) -> u32 {
    fixture.counter.count_fallback(2, Direction::Take, Hits(0), true, fixture.now).remaining
}

#[test]
fn the_end_of_an_outage_forgets_neither_leases_nor_siblings() {
    let mut fixture = full();
    assert_eq!(left_without_store(&mut fixture), 47);
    fixture.counter.end_fallback();
    assert_eq!(fixture.counter.leased_hits(), 4);
    assert!(fixture.counter.may_have_siblings());
    assert_eq!(left_without_store(&mut fixture), 48, "each of both has three fewer");
}

#[test]
fn a_sibling_that_is_gone_takes_neither_leases_nor_the_fallback_along() {
    let mut fixture = full();
    fixture.counter.set_siblings(Vec::new());
    assert!(!fixture.counter.may_have_siblings());
    assert_eq!((fixture.counter.leased_hits(), left_without_store(&mut fixture)), (4, 47));
    // each alone
    for has_lease in [true, false] {
        let mut fixture = full();
        if has_lease {
            fixture.counter.end_fallback();
        } else {
            fixture.counter.return_leases();
            fixture.flush();
            fixture.counter.count_fallback(2, Direction::Take, Hits(3), true, fixture.now);
        }
        fixture.counter.set_siblings(Vec::new());
        assert_eq!(fixture.counter.leased_hits(), if has_lease { 4 } else { 0 });
    }
}

#[test]
fn a_counter_that_forgets_its_leasing_knows_its_siblings() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    let sibling = Fixture::new(&[fixed(100, 60), fixed(1_000, 3_600)], 2);
    fixture.counter.set_siblings(vec![sibling.counter.sibling_hits()]);
    let _ = fixture.counter.leasing_mut();
    fixture.wait(Period::from_secs(2));
    fixture.counter.shrink(fixture.now);
    assert!(fixture.counter.leasing().is_none() && fixture.counter.may_have_siblings());
}
