//! What a counter keeps.

use super::*;

/// But it does not forget that the store counts hits for it.
#[test]
fn an_unused_counter_forgets_how_it_leased() {
    let used = || {
        let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
        fixture.counter.last_check_at = fixture.now;
        fixture.hold(3, millis(300));
        assert!(fixture.decide(3).is_some_and(|decision| !decision.over));
        fixture.counter.leasing_mut();
        fixture
    };
    let second = START.after(Period::from_secs(1));
    let mut fixture = used();
    fixture.counter.leasing_mut().is_scarce = true;
    fixture.counter.shrink(second);
    assert!(fixture.counter.leasing().is_some());
    fixture.counter.leasing_mut().is_scarce = false;
    fixture.counter.shrink(second);
    assert!(fixture.counter.leasing().is_none() && fixture.counter.rare.is_nothing(), "it is small");
    let end = START.after(Period::from_secs(60));
    let before = Timestamp::from_nanos(end.as_nanos() - 1);
    assert!(fixture.counter.has_grants(before) && !fixture.counter.has_grants(end));
    // once they do not count any more, there is nothing to remember
    let mut late = used();
    late.counter.shrink(end);
    assert!(late.counter.rare.is_nothing() && !late.counter.has_grants(before));
    // each of these has to be remembered
    let facts: [fn(&mut Fixture); 3] = [
        |fixture| fixture.hold(1, Period::default()),
        |fixture| fixture.ask(1, Asks::Look),
        |fixture| fixture.counter.look_for_returned(fixture.now),
    ];
    for (i, fact) in facts.into_iter().enumerate() {
        let mut fixture = used();
        fact(&mut fixture);
        fixture.counter.shrink(second);
        assert!(!fixture.counter.rare.is_nothing(), "fact {i}");
    }
}

/// Once no decision waits and no lease is left, a counter is as small as any other.
#[test]
fn a_decided_hit_leaves_nothing_behind() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    assert_eq!(fixture.lease(1), 1);
    assert!(fixture.counter.rare.is_nothing());
    // what is left of a lease stays, and the rest goes with its last hit
    fixture.hold(2, Period::default());
    assert!(fixture.counter.leasing().is_none());
    for left in [1, 0] {
        assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
        assert_eq!((fixture.counter.leased_hits(), !fixture.counter.rare.is_nothing()), (left, left > 0));
    }
}

/// A lease of a sliding window that has ended unused counts for longer than the estimate does.
#[test]
fn grants_that_count_longer_than_the_estimate_are_remembered() {
    let mut fixture = Fixture::new(&[sliding(100, 10)], 2);
    fixture.hold(3, millis(90));
    let counted_until = fixture.counter.heard.granted_until.instant();
    fixture.wait(Period::from_secs(2));
    let time = fixture.time();
    fixture.counter.expire_leases(time);
    fixture.counter.last_check_at = START;
    assert!(fixture.counter.estimate[0].idle_at() < counted_until);
    fixture.counter.shrink(fixture.now);
    assert!(fixture.counter.leasing().is_none() && fixture.counter.rare.is_nothing(), "it is small");
    assert!(fixture.counter.has_grants(fixture.now));
    // the store has received what was not used, but may count reported hits at other times
    fixture.flush();
    assert_eq!(fixture.left_in_store(), 100);
    fixture.now = counted_until;
    fixture.counter.shrink(fixture.now);
    assert!(fixture.counter.rare.is_nothing() && !fixture.counter.has_grants(fixture.now));
    assert!(fixture.counter.is_idle(fixture.now));
}
