//! Facts that few counters have: each goes without the others.

use super::*;

/// Counts a hit under a limit that has another tier too.
fn count_elsewhere(fixture: &mut Fixture) {
    let tiers = vec![fixed(100, 60), fixed(1_000, 3_600)].into();
    let other = Arc::new(Target { tiers, ..(*fixture.counter.target).clone() });
    let (instances, now) = (fixture.instances, fixture.now);
    let decision = fixture.counter.under(&other, now, |counter| {
        assert!(counter.is_away());
        counter.among(instances).count(Direction::Take, OverLimitPolicy::Ignore, Hits(1), now)
    });
    assert!(!decision.over && !fixture.counter.is_away());
}

/// Returns whether it knows more tiers than those of its limit.
fn knows_others(fixture: &Fixture) -> bool {
    fixture.counter.other_tiers().is_some()
}

/// Returns a counter that knows something of each kind.
fn full() -> Fixture {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.hold(4, Period::default());
    count_elsewhere(&mut fixture);
    fixture.counter.among(2).count_fallback(Direction::Take, Hits(3), true, fixture.now);
    fixture
}

/// Returns the hits that are left as if every instance counted the same ones, if they are known.
fn left_without_store(fixture: &mut Fixture) -> u32 {
    fixture.counter.among(2).count_fallback(Direction::Take, Hits(0), true, fixture.now).remaining
}

#[test]
fn the_end_of_an_outage_forgets_neither_leases_nor_other_tiers() {
    let mut fixture = full();
    assert_eq!(left_without_store(&mut fixture), 46);
    fixture.counter.end_fallback();
    assert_eq!(fixture.counter.leased_hits(), 4);
    assert!(knows_others(&fixture));
    assert_eq!(
        left_without_store(&mut fixture),
        48,
        "each of both has three fewer, and the hit under the other limit"
    );
}

#[test]
fn tiers_that_are_forgotten_take_neither_leases_nor_the_fallback_along() {
    let hour = Period::from_secs(3_600);
    // each alone
    for has_lease in [true, false] {
        let mut fixture = full();
        if has_lease {
            fixture.counter.end_fallback();
        } else {
            fixture.counter.return_leases();
            fixture.flush();
            fixture.counter.among(2).count_fallback(Direction::Take, Hits(3), true, fixture.now);
        }
        fixture.counter.forget_others(START.after(hour));
        assert!(!knows_others(&fixture));
        assert_eq!(fixture.counter.leased_hits(), if has_lease { 4 } else { 0 });
    }
}

#[test]
fn a_counter_that_forgets_its_leasing_knows_its_other_tiers() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    count_elsewhere(&mut fixture);
    let _ = fixture.counter.leasing_mut();
    fixture.wait(Period::from_secs(2));
    fixture.counter.shrink(fixture.now);
    assert!(fixture.counter.leasing().is_none() && knows_others(&fixture));
    fixture.wait(Period::from_secs(3_600));
    fixture.counter.shrink(fixture.now);
    assert!(!knows_others(&fixture));
}
