//! What a counter keeps.

use super::*;

/// But it does not forget that the store counts hits for it.
#[test]
fn a_counter_whose_lease_is_used_up_is_small() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.grant_lease(3, millis(300));
    assert!(fixture.decide(3).is_some_and(|decision| !decision.over));
    assert!(fixture.counter.is_small());
    let end = START.after(Period::from_secs(60));
    let before = Timestamp::from_nanos(end.as_nanos() - 1);
    assert!(fixture.counter.has_granted_hits(before) && !fixture.counter.has_granted_hits(end));
}

/// The first rejection may follow the last admission at once.
#[test]
fn looks_are_rarer_and_rarer_until_hits_are_granted() {
    let mut fixture = Fixture::new(&[fixed(100, 3_600)], 2);
    let looks = |fixture: &mut Fixture, times: u64| -> Vec<u64> {
        fixture.lease(1);
        let ms = (0..times).filter(|_| {
            fixture.wait(millis(1));
            fixture.counter.look_for_returned(fixture.now);
            !fixture.flush().is_empty()
        });
        ms.collect()
    };
    assert_eq!(looks(&mut fixture, 8_000), [249, 749, 1_749, 3_749, 7_749]);
    assert_eq!(looks(&mut fixture, 800), [249, 749]);
    fixture.counter.plan.schedule.set_interval(millis(500));
    assert_eq!(looks(&mut fixture, 800), [499], "no look before the count could have changed");
}

/// Once no decision waits and no lease is left, a counter is as small as any other.
#[test]
fn a_decided_hit_leaves_nothing_behind() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    assert_eq!(fixture.lease(1), 1);
    assert!(fixture.counter.is_small());
    // what is left of a lease stays, and the rest goes with its last hit
    fixture.grant_lease(2, Period::default());
    for left in [1, 0] {
        assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
        assert_eq!((fixture.counter.ledger.leased(), !fixture.counter.is_small()), (left, left > 0));
    }
}

/// A lease of a sliding window that has ended unused counts for longer than the estimate does.
#[test]
fn grants_that_count_longer_than_the_estimate_are_remembered() {
    let mut fixture = Fixture::new(&[sliding(100, 10)], 2);
    fixture.grant_lease(3, millis(90));
    let counted_until = fixture.counter.last_reply.granted_until.instant();
    fixture.wait(Period::from_secs(2));
    let time = fixture.link().time;
    fixture.counter.expire_leases(time);
    fixture.counter.last_check_at = START;
    assert!(fixture.counter.estimate[0].idle_at() < counted_until);
    assert!(fixture.counter.is_small(), "it is small");
    assert!(fixture.counter.has_granted_hits(fixture.now));
    // the store has received what was not used, but may count reported hits at other times
    fixture.flush();
    assert_eq!(fixture.left_in_store(), 100);
    fixture.now = counted_until;
    assert!(fixture.counter.is_small() && !fixture.counter.has_granted_hits(fixture.now));
    assert!(fixture.counter.is_idle(fixture.now));
}
