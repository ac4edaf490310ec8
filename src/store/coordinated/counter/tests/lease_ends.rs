//! What becomes of a lease that ends or is not used any more.

use super::*;
use crate::{limit::NANOS_PER_SECOND, store::remote::UnusedHits};

const NANO: Period = Period::from_nanos(1);

fn returning(fixture: &Fixture) -> u64 {
    fixture.counter.owed_hits().stranded - fixture.counter.leased_hits()
}

#[test]
fn a_busy_counter_is_abandoned_sooner_but_not_within_a_sync_interval() {
    for (every, longest, after) in [(1, 100, 100), (40, 100, 200), (2_000, 5_000, 10_000)] {
        let mut fixture = Fixture::new(&[fixed(10_000, 3_600)], 2);
        fixture.demand(millis(every), 2_000);
        fixture.hold(60, Period::default());
        fixture.counter.last_check_at = fixture.now;
        let due = fixture.counter.due_at(millis(10)).expect("there is a lease").0.since(fixture.now);
        // about five intervals between hits
        assert!(
            (millis(longest)..=millis(after + after / 5)).contains(&due),
            "{due} with a hit each {every} ms"
        );
        fixture.wait(due);
        fixture.counter.among(2).return_abandoned(fixture.now);
        assert_eq!(returning(&fixture), 0);
        fixture.wait(NANO);
        fixture.counter.among(2).return_abandoned(fixture.now);
        assert_eq!(returning(&fixture), 60);
    }
}

#[test]
fn in_another_mode_nothing_is_kept() {
    let mut fixture = Fixture::new(&[fixed(1_000, 3_600)], 1);
    assert_eq!(fixture.counter.due_at(millis(10)), None);
    fixture.hold(126, Period::default());
    assert_eq!(fixture.counter.due_at(millis(10)).map(|(_, is_punctual)| is_punctual), Some(false));
    fixture.counter.change_mode(Coordination::Interval);
    assert_eq!((returning(&fixture), fixture.counter.leased_hits()), (126, 0));
    // what arrives later too
    fixture.hold(4, Period::default());
    assert_eq!((returning(&fixture), fixture.counter.leased_hits()), (4, 0));
}

/// Otherwise others may receive the tokens that flow in before the hits of the lease are back.
#[test]
fn a_lease_of_a_bucket_that_others_use_is_returned_just_before_its_end() {
    let expire = |fixture: &mut Fixture, at: Timestamp| {
        fixture.now = at;
        let link = fixture.link();
        fixture.counter.expire_leases(&link);
        returning(fixture)
    };
    for (tiers, instances, is_returned) in [
        (vec![bucket(1_000, 60)], 3, true),
        (vec![bucket(1_000, 60), fixed(1_000, 3_600)], 3, true),
        (vec![bucket(1_000, 60)], 1, false),
        (vec![sliding(1_000, 60)], 3, false),
        (vec![fixed(10_000, 3_600)], 3, false),
    ] {
        let name = format!("{tiers:?}, {instances} instances");
        let mut fixture = Fixture::new(&tiers, instances);
        fixture.hold(7, millis(400));
        fixture.hold(5, millis(405));
        let (lead, until) = (fixture.link().lead(), fixture.counter.leases()[0].until);
        let ending = until.before(lead);
        let due = fixture.counter.due_at(lead);
        assert_eq!(due == Some((ending, true)), is_returned, "{name}: {due:?}");
        for (at, returned) in [(ending.before(NANO), 0), (ending, 7), (ending.after(millis(5)), 12)] {
            assert_eq!(expire(&mut fixture, at), if is_returned { returned } else { 0 }, "{name}");
        }
        if is_returned {
            // the earliest end of both leases
            assert_eq!(fixture.reports()[0].unused, Some(UnusedHits { hits: 12, until }), "{name}");
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
        fixture.hold(held, hold);
        fixture.now = fixture.counter.leases()[0].until;
        let end = fixture.link();
        // those of buckets would be returned in time
        let early = fixture.now.before(end.lead()).before(NANO);
        assert_eq!(fixture.counter.expire_leases(&link(instances, early)).stranded, 0, "{name}");
        assert_eq!(fixture.counter.leased_hits(), held, "{name}");
        let dropped = fixture.counter.expire_leases(&end);
        assert_eq!((fixture.counter.leased_hits(), dropped.unreported), (0, 0), "{name}");
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
        let want = held(&composed).expect("it keeps a few").want;
        fixture.instances = 2;
        fixture.counter.follow_instances(2);
        fixture.deliver(composed);
        let expected = if is_returned { (want, 0) } else { (0, want) };
        assert_eq!((returning(&fixture), fixture.counter.leased_hits()), expected);
    }
}

/// The clock's latest reading counts: the window must certainly not be over.
#[test]
fn a_lease_ends_by_the_latest_reading_of_the_clock() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 3);
    fixture.hold(9, Period::default());
    let end = Timestamp::from_nanos(START.as_nanos() + 60 * NANOS_PER_SECOND);
    let now = Timestamp::from_nanos(end.as_nanos() - 20_000_000);
    let late = Timestamp::from_nanos(end.as_nanos() - 1);
    let at = |latest| Link { time: StoreTime { now, latest }, ..fixture.link() };
    let (before, ended) = (at(late), at(end));
    fixture.counter.expire_leases(&before);
    assert_eq!(fixture.counter.leased_hits(), 9);
    assert_eq!(fixture.counter.expire_leases(&ended).stranded, 0);
    assert_eq!((fixture.counter.leased_hits(), returning(&fixture)), (0, 9));
}
