//! What becomes of a lease that ends or is not used any more.

use super::{super::records::HeldLease, *};
use crate::{limit::NANOS_PER_SECOND, store::remote::UnusedHits};

const NANO: Period = Period::from_nanos(1);

fn returning(fixture: &Fixture) -> u64 {
    fixture.counter.owed_hits().stranded - fixture.counter.leased_hits()
}

/// An instance may keep an eighth of the limit if it is alone, and otherwise its part of a hundredth; of a bucket that
/// others use too, or of hits that count for longer than they may be used, nothing. More is returned when no hit
/// arrives for longer than the sync interval.
#[test]
fn a_lease_that_is_not_used_is_returned_but_for_a_few_hits() {
    let (minute, hour) = (60, 3_600);
    for (tiers, instances, kept) in [
        (vec![fixed(1_000, hour)], 1, 125),
        (vec![fixed(1_000, hour)], 4, 2),
        (vec![sliding(1_000, minute)], 1, 125),
        (vec![sliding(1_000, minute)], 4, 2),
        (vec![bucket(1_000, minute)], 1, 125),
        (vec![bucket(1_000, minute)], 4, 0),
        (vec![bucket(1_000, minute), fixed(1_000, hour)], 1, 0),
        (vec![bucket(1_000, minute), fixed(1_000, hour)], 4, 0),
    ] {
        for (held, is_returned) in [(kept, false), (kept + 1, true)] {
            if held == 0 {
                continue;
            }
            let name = format!("{held} of {tiers:?} held by one of {instances}");
            let mut fixture = Fixture::new(&tiers, instances);
            fixture.hold(held, Period::from_secs(29));
            let until = fixture.counter.leases()[0].until;
            let due = fixture.counter.view().due_at(millis(10)).map(|(at, _)| at);
            // five expected intervals of an unknown demand are ten seconds
            let unused_at = START.after(Period::from_secs(10));
            let ending = if instances > 1 && tiers[0].algorithm != Algorithm::FixedWindow {
                Timestamp::from_nanos(until.as_nanos() - 10_000_000)
            } else {
                until
            };
            // the sweep forgets what is left of a single window
            let is_forgotten = !is_returned && tiers[..] == [fixed(1_000, 3_600)];
            let expected = if is_returned { unused_at.min(ending) } else { ending };
            assert_eq!(due, (!is_forgotten).then_some(expected), "{name}");
            for (at, expected) in
                [(unused_at, 0), (unused_at.after(NANO), if is_returned { held } else { 0 })]
            {
                fixture.now = at;
                fixture.counter.among(instances).return_ending(millis(10), at);
                assert_eq!(returning(&fixture), expected, "{name}, after {}", at.since(START));
                assert_eq!(fixture.counter.leased_hits(), held - expected, "{name}");
            }
            if is_returned {
                fixture.flush();
                assert_eq!(fixture.left_in_store(), 1_000, "{name}");
            }
        }
    }
}

#[test]
fn a_busy_counter_is_abandoned_sooner_but_not_within_a_sync_interval() {
    for (every, longest, after) in [(1, 100, 100), (40, 100, 200), (2_000, 5_000, 10_000)] {
        let mut fixture = Fixture::new(&[fixed(10_000, 3_600)], 2);
        fixture.demand(millis(every), 2_000);
        fixture.hold(60, Period::default());
        fixture.counter.last_check_at = fixture.now;
        let due = fixture.counter.view().due_at(millis(10)).expect("there is a lease").0.since(fixture.now);
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
    assert_eq!(fixture.counter.view().due_at(millis(10)), None);
    fixture.hold(126, Period::default());
    assert_eq!(fixture.counter.view().due_at(millis(10)).map(|(_, is_punctual)| is_punctual), Some(false));
    fixture.counter.change_mode(Coordination::Interval);
    assert_eq!((returning(&fixture), fixture.counter.leased_hits()), (126, 0));
    // what arrives later too
    fixture.hold(4, Period::default());
    assert_eq!((returning(&fixture), fixture.counter.leased_hits()), (4, 0));
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
        fixture.hold(7, millis(hold));
        fixture.hold(5, millis(2 * hold));
        let until = fixture.counter.leases()[0].until;
        let ending = Timestamp::from_nanos(until.as_nanos() - lead.as_nanos());
        let due = fixture.counter.view().due_at(lead);
        assert_eq!(due == Some((ending, true)), is_returned, "{name}: {due:?}");
        let early = Timestamp::from_nanos(ending.as_nanos() - 1);
        fixture.counter.among(instances).return_ending(lead, early);
        assert_eq!(returning(&fixture), 0, "{name}");
        let mut returned = fixture.counter.return_leases_before(ending.after(lead));
        assert_eq!(returned, if is_returned { 7 } else { 0 }, "{name}");
        returned += fixture.counter.return_leases_before(START.after(Period::from_secs(20)));
        assert_eq!(returned, if is_returned { 12 } else { 0 }, "{name}");
        assert_eq!(returning(&fixture), returned, "{name}");
        if is_returned {
            let unused = fixture.reports()[0].unused;
            // the earliest end of both leases
            let until = START.after(millis(hold));
            assert_eq!(unused, Some(UnusedHits { hits: 12, until }), "{name}");
        }
    }
}

#[test]
fn a_lease_is_renewed_in_the_call_that_returns_it() {
    let mut fixture = Fixture::new(&[sliding(100, 60)], 3);
    fixture.demand(millis(1), 100);
    fixture.hold(40, millis(100));
    assert!(fixture.take_elsewhere(60) == 60, "nothing is left");
    fixture.wait(millis(95));
    fixture.demand(Period::default(), 8);
    let composed = fixture.fetch();
    let unused = composed[0].0.exchange.reports.last().and_then(|report| report.unused);
    assert_eq!((composed.len(), unused.map(|unused| unused.hits)), (1, Some(40)));
    assert_eq!(held(&composed).map(|hold| hold.want), Some(40), "its share of the remainder is less");
    assert_eq!(fixture.deliver(composed), 40);
    assert_eq!(fixture.counter.leased_hits(), 40);
}

#[test]
fn a_lease_is_renewed_only_if_hits_are_likely_and_the_store_may_have_some() {
    let renewing = |tiers: &[Tier], instances| {
        let mut fixture = Fixture::new(tiers, instances);
        fixture.demand(millis(1), 200);
        fixture.hold(20, millis(100));
        fixture
    };
    let soon = millis(100);
    for instances in [2, 3] {
        let fixture = renewing(&[sliding(10_000, 60)], instances);
        assert!(fixture.counter.view().should_renew(soon, fixture.now));
        assert!(!fixture.counter.view().should_renew(millis(99), fixture.now), "it does not end yet");
    }
    let alone = renewing(&[sliding(10_000, 60)], 1);
    assert!(!alone.counter.view().should_renew(soon, alone.now), "alone");
    let window = renewing(&[fixed(10_000, 60)], 3);
    assert!(
        !window.counter.view().should_renew(Period::from_secs(61), window.now),
        "it ends with the window"
    );
    let mut denied = renewing(&[sliding(10_000, 60)], 3);
    denied.counter.plan.denied_until = denied.now.after(NANO);
    assert!(!denied.counter.view().should_renew(soon, denied.now), "denied");
    let mut quiet = Fixture::new(&[sliding(10_000, 60)], 3);
    quiet.hold(20, millis(100));
    assert!(!quiet.counter.view().should_renew(soon, quiet.now), "no demand");
    let mut at_once = Fixture::new(&[sliding(10_000, 60)], 3);
    at_once.demand(millis(1), 200);
    at_once.hold(20, Period::default());
    assert!(!at_once.counter.view().should_renew(soon, at_once.now), "without a hold");
    let mut none = Fixture::new(&[sliding(10_000, 60)], 3);
    none.demand(millis(1), 200);
    assert!(!none.counter.view().should_renew(soon, none.now), "no lease");
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
        let time = |nanos| {
            let at = Timestamp::from_nanos(fixture.now.as_nanos() - nanos);
            StoreTime { now: at, latest: at }
        };
        let (before, end) = (time(1), time(0));
        assert_eq!(fixture.counter.expire_leases(before).stranded, 0, "{name}");
        assert_eq!(fixture.counter.leased_hits(), held, "{name}");
        let dropped = fixture.counter.expire_leases(end);
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

/// Leases of an instance that is alone last for long, since nobody else lacks the hits.
#[test]
fn a_lone_lease_is_returned_when_another_instance_appears() {
    for (tier, returned) in [(bucket(100, 60), 9), (sliding(100, 60), 9), (fixed(100, 60), 0)] {
        let mut fixture = Fixture::new(&[tier], 1);
        fixture.hold(9, Period::from_secs(20));
        fixture.counter.follow_instances(1);
        assert_eq!(returning(&fixture), 0);
        fixture.instances = 2;
        fixture.counter.follow_instances(2);
        assert_eq!((returning(&fixture), fixture.counter.leased_hits()), (returned, 9 - returned));
        // it knows of the others now
        fixture.flush();
        fixture.hold(5, millis(300));
        let held = fixture.counter.leased_hits();
        fixture.counter.follow_instances(3);
        assert_eq!((returning(&fixture), fixture.counter.leased_hits()), (0, held));
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
    fixture.counter.expire_leases(StoreTime { now, latest: late });
    assert_eq!(fixture.counter.leased_hits(), 9);
    assert_eq!(fixture.counter.expire_leases(StoreTime { now, latest: end }).stranded, 9);
    assert_eq!(fixture.counter.leased_hits(), 0);
}

fn keeping(tiers: &[Tier], held: u64, instances: usize) -> Fixture {
    let mut fixture = Fixture::new(tiers, instances);
    let end = START.window_end(Period::from_secs(60));
    fixture.counter.rare.add_lease(HeldLease::new(Hits(held), START, end));
    fixture
}

/// So the sweep can leave it alone.
#[test]
fn a_counter_that_only_keeps_a_lease_has_nothing_to_do_until_its_window_ends() {
    let at = |now: Timestamp| StoreTime { now, latest: now };
    let end = START.window_end(Period::from_secs(60));
    let last = Timestamp::from_nanos(end.as_nanos() - 1);
    for (tiers, held, instances, is_keeping) in [
        (vec![fixed(1_000, 60)], 125, 1, true),
        (vec![fixed(1_000, 60)], 126, 1, false),
        (vec![fixed(1_000, 60)], 2, 4, true),
        (vec![fixed(1_000, 60)], 3, 4, false),
        (vec![sliding(1_000, 60)], 2, 1, false),
        (vec![fixed(1_000, 60), fixed(5_000, 600)], 2, 1, false),
    ] {
        let mut fixture = keeping(&tiers, held, instances);
        let counter = &mut fixture.counter;
        for (now, instances, expected) in [
            (START, instances, is_keeping),
            (last, instances, is_keeping),
            // 1 % of the limit for all together
            (last, 3, held <= 3 && tiers == [fixed(1_000, 60)]),
            (end, instances, false),
        ] {
            let name = format!("{held} of {tiers:?}, {instances} at {now:?}");
            assert_eq!(counter.among(instances).is_keeping(at(now)), expected, "{name}");
        }
        if is_keeping {
            // what the sweep does otherwise
            assert_eq!(counter.drop_ended(last).all() + counter.expire_leases(at(last)).all(), 0);
            counter.among(instances).return_ending(millis(10), last);
            counter.shrink(last);
            assert!(counter.leased_hits() == held && !counter.can_flush());
            assert_eq!(counter.view().due_at(millis(10)), None);
        }
    }
}

#[test]
fn a_counter_that_keeps_a_lease_and_has_something_else_to_do_is_looked_at() {
    let changes: [fn(&mut Fixture); 4] = [
        |fixture| fixture.counter.change_mode(Coordination::Interval),
        |fixture| _ = fixture.count(1),
        |fixture| fixture.counter.refresh(NANO, START.after(NANO)),
        |fixture| fixture.ask(1, Asks::Look),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut fixture = keeping(&[fixed(1_000, 60)], 2, 1);
        let time = fixture.time();
        assert!(fixture.counter.is_keeping(time));
        change(&mut fixture);
        assert!(!fixture.counter.is_keeping(time), "change {i}");
    }
}
