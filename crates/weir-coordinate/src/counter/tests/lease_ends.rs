//! What becomes of a lease that ends or is not used any more.

use super::*;
use weir_limit::NANOS_PER_SECOND;
use weir_store::remote::UnusedHits;

const NANO: Period = Period::from_nanos(1);

fn returning(fixture: &Fixture) -> u64 {
    fixture.counter.ledger.owed().stranded - fixture.counter.ledger.leased()
}

#[test]
fn a_busy_counter_is_abandoned_sooner_but_not_within_a_sync_interval() {
    for (every, longest, after) in [(1, 100, 100), (40, 100, 200), (2_000, 5_000, 10_000)] {
        let mut fixture = Fixture::new(&[fixed(10_000, 3_600)], 2);
        fixture.demand(millis(every), 2_000);
        fixture.grant_lease(60, Period::default());
        fixture.counter.last_check_at = fixture.now;
        let due =
            fixture.counter.due_at(millis(10), fixture.now).expect("there is a lease").0.since(fixture.now);
        // about five intervals between hits
        assert!(
            (millis(longest)..=millis(after + after / 5)).contains(&due),
            "{due} with a hit each {every} ms"
        );
        fixture.wait(due);
        fixture.counter.among(2).return_ending(millis(10), fixture.now);
        assert_eq!(returning(&fixture), 0);
        fixture.wait(NANO);
        fixture.counter.among(2).return_ending(millis(10), fixture.now);
        assert_eq!(returning(&fixture), 60);
    }
}

#[test]
fn in_another_mode_nothing_is_kept() {
    let mut fixture = Fixture::new(&[fixed(1_000, 3_600)], 1);
    assert_eq!(fixture.counter.due_at(millis(10), fixture.now), None);
    fixture.grant_lease(126, Period::default());
    assert_eq!(
        fixture.counter.due_at(millis(10), fixture.now).map(|(_, is_punctual)| is_punctual),
        Some(false)
    );
    fixture.counter.change_mode(Coordination::Interval);
    assert_eq!((returning(&fixture), fixture.counter.ledger.leased()), (126, 0));
    // what arrives later too
    fixture.grant_lease(4, Period::default());
    assert_eq!((returning(&fixture), fixture.counter.ledger.leased()), (4, 0));
}

/// One that ends is returned in time for other instances, if it has a hold: without one it is used at once or never.
#[test]
fn a_lease_with_a_hold_is_returned_just_before_its_end() {
    let lead = millis(10);
    for (tiers, instances, hold, is_returned) in [
        (vec![sliding(1_000, 60)], 3, 400, true),
        (vec![bucket(1_000, 60)], 3, 400, true),
        (vec![sliding(1_000, 60), fixed(1_000, 3_600)], 3, 400, true),
        (vec![sliding(1_000, 60)], 1, 400, false),
        (vec![fixed(10_000, 3_600)], 3, 400, false),
    ] {
        let name = format!("{tiers:?}, {instances} instances, for {hold} ms");
        let mut fixture = Fixture::new(&tiers, instances);
        fixture.grant_lease(7, millis(hold));
        fixture.grant_lease(5, millis(2 * hold));
        let until = fixture.counter.ledger.leases()[0].until;
        let ending = Timestamp::from_nanos(until.as_nanos() - lead.as_nanos());
        let due = fixture.counter.due_at(lead, fixture.now);
        assert_eq!(due == Some((ending, true)), is_returned, "{name}: {due:?}");
        let early = Timestamp::from_nanos(ending.as_nanos() - 1);
        fixture.counter.among(instances).return_ending(lead, early);
        assert_eq!(returning(&fixture), 0, "{name}");
        for (at, returned) in [(ending, 7), (START.after(millis(2 * hold)), 12)] {
            fixture.counter.return_ending(lead, at);
            assert_eq!(returning(&fixture), if is_returned { returned } else { 0 }, "{name}");
        }
        if is_returned {
            let unused = fixture.reports()[0].unused;
            // the earliest end of both leases
            let until = START.after(millis(hold));
            assert_eq!(unused, Some(UnusedHits { hits: 12, until }), "{name}");
        }
    }
}

/// Its hits are stranded if they count no longer, or if others may have received the tokens that have flowed in since.
/// Otherwise they are returned.
#[test]
fn hits_of_a_lease_that_has_ended_are_stranded_or_returned() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fate {
        Stranded,
        Returned,
    }
    let hold = Period::from_secs(3);
    for (tiers, instances, held, fate) in [
        (vec![fixed(80, 2)], 1, 3, Fate::Stranded),
        (vec![fixed(80, 2)], 3, 3, Fate::Stranded),
        (vec![fixed(80, 2), fixed(100, 3_600)], 3, 3, Fate::Returned),
        (vec![sliding(80, 60)], 3, 3, Fate::Returned),
        (vec![sliding(80, 60)], 1, 10, Fate::Returned),
        (vec![sliding(80, 60)], 1, 11, Fate::Returned),
        (vec![bucket(80, 40)], 3, 3, Fate::Stranded),
        (vec![bucket(80, 40)], 1, 11, Fate::Stranded),
        (vec![bucket(80, 40), fixed(80, 3_600)], 1, 3, Fate::Returned),
        (vec![bucket(80, 40), fixed(80, 3_600)], 3, 3, Fate::Stranded),
    ] {
        let name = format!("{held} of {tiers:?} held by one of {instances}");
        let mut fixture = Fixture::new(&tiers, instances);
        fixture.grant_lease(held, hold);
        fixture.now = fixture.counter.ledger.leases()[0].until;
        let time = |nanos| {
            let at = Timestamp::from_nanos(fixture.now.as_nanos() - nanos);
            StoreTime { now: at, latest: at }
        };
        let (before, end) = (time(1), time(0));
        assert_eq!(fixture.counter.expire_leases(before).stranded, 0, "{name}");
        assert_eq!(fixture.counter.ledger.leased(), held, "{name}");
        let dropped = fixture.counter.expire_leases(end);
        assert_eq!((fixture.counter.ledger.leased(), dropped.unreported), (0, 0), "{name}");
        assert_eq!(dropped.stranded, if fate == Fate::Stranded { held } else { 0 }, "{name}");
        assert_eq!(returning(&fixture), if fate == Fate::Returned { held } else { 0 }, "{name}");
        assert_eq!(fixture.counter.has_pending(), fate != Fate::Stranded, "{name}");
        let used = |fixture: &mut Fixture| {
            let capacity = fixture.counter.target.tiers.iter().map(Tier::capacity).min();
            capacity.expect("there is a tier") - fixture.left_in_store()
        };
        if fate != Fate::Stranded {
            fixture.flush();
            assert_eq!(used(&mut fixture), 0, "{name}");
            assert!(!fixture.counter.has_pending(), "{name}: once is enough");
        }
    }
}

/// What was asked for as by a lone instance would be kept for half of the period.
#[test]
fn a_lone_lease_that_arrives_when_there_is_another_instance_is_returned() {
    for (tier, is_returned) in [(bucket(100, 60), true), (sliding(100, 60), true), (fixed(100, 60), false)] {
        let mut fixture = Fixture::new(&[tier], 1);
        let composed = fixture.request(1);
        let want = lease_request(&composed).expect("it keeps a few").want;
        fixture.instances = 2;
        fixture.counter.follow_instances(2);
        fixture.deliver(composed);
        let expected = if is_returned { (want, 0) } else { (0, want) };
        assert_eq!((returning(&fixture), fixture.counter.ledger.leased()), expected);
    }
}

/// The clock's latest reading counts: the window must certainly not be over.
#[test]
fn a_lease_ends_by_the_latest_reading_of_the_clock() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 3);
    fixture.grant_lease(9, Period::default());
    let end = Timestamp::from_nanos(START.as_nanos() + 60 * NANOS_PER_SECOND);
    let now = Timestamp::from_nanos(end.as_nanos() - 20_000_000);
    let late = Timestamp::from_nanos(end.as_nanos() - 1);
    fixture.counter.expire_leases(StoreTime { now, latest: late });
    assert_eq!(fixture.counter.ledger.leased(), 9);
    assert_eq!(fixture.counter.expire_leases(StoreTime { now, latest: end }).stranded, 0);
    assert_eq!((fixture.counter.ledger.leased(), returning(&fixture)), (0, 9));
}
