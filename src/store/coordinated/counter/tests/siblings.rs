//! Counters of the same entries whose limits have some tiers in common.

use super::*;
use crate::limit::algorithm::CounterState;

/// Returns two counters of one store, of a rule's limit before a reload has added a tier and after it.
fn siblings(old: &[Tier], new: &[Tier]) -> (Fixture, Fixture) {
    (Fixture::new(old, 2), Fixture::new(new, 2))
}

/// Makes what `other` has counted known to `fixture`, as each access does.
fn introduce(fixture: &mut Fixture, other: &Fixture) {
    fixture.counter.set_siblings(vec![other.counter.sibling_hits()]);
}

fn target(path: &str, tiers: &[Tier], over_limit_policy: OverLimitPolicy) -> Target {
    Target { path: path.into(), tiers: tiers.to_vec().into(), over_limit_policy }
}

#[test]
fn counters_of_the_same_entries_that_share_a_tier_are_siblings() {
    let fixture = Fixture::new(&[fixed(100, 60), sliding(50, 10)], 2);
    let ignore = OverLimitPolicy::Ignore;
    for (target, is_sibling) in [
        (target("d|k=v", &[fixed(7, 60)], ignore), true),
        (target("d|k=v", &[fixed(100, 3_600), sliding(7, 10)], ignore), true),
        (target("d|k=v", &[fixed(50, 10), sliding(100, 60), bucket(50, 10)], ignore), false),
        (target("d|k=w", &[fixed(100, 60), sliding(50, 10)], ignore), false),
        (target("d|k=v", &[fixed(100, 60)], OverLimitPolicy::Count), false),
    ] {
        assert_eq!(fixture.counter.is_sibling_of(&target), is_sibling, "{target:?}");
    }
}

/// The estimate includes what a sibling has not reported, and a lease that only the sibling may use.
#[test]
fn a_reply_lacks_what_siblings_have_counted() {
    let (mut old, mut new) = siblings(&[fixed(100, 60)], &[fixed(100, 60), fixed(1_000, 3_600)]);
    old.count(7);
    introduce(&mut new, &old);
    new.read();
    assert_eq!(new.counter.remaining(new.now), 93, "in the tier that both have");
    assert_eq!(new.counter.estimate.iter().map(|state| state.used().0).collect::<Vec<_>>(), [7, 0]);
    old.flush();
    old.hold(6, Period::default());
    // the store, which both have, counts them
    std::mem::swap(&mut old.store, &mut new.store);
    introduce(&mut new, &old);
    new.read();
    assert_eq!(new.counter.estimate[0].used(), Hits(7), "without those that are leased");
    // while the sibling's report is on its way, nobody knows whether the reply counts it
    std::mem::swap(&mut old.store, &mut new.store);
    old.count(5);
    let reports = old.reports();
    assert_eq!(reports.len(), 1);
    introduce(&mut new, &old);
    new.now = new.now.after(millis(1));
    let reply = Reply {
        counters: new
            .counter
            .target
            .tiers
            .iter()
            .map(|tier| {
                let mut state = CounterState::unused(tier, START);
                state.take(tier, START, Hits(40));
                state
            })
            .collect(),
        ..Reply::default()
    };
    new.counter.apply_last_reply(&reply, new.now);
    assert_eq!(new.counter.estimate.iter().map(|state| state.used().0).collect::<Vec<_>>(), [7, 40]);
    assert!(new.counter.has_pending(), "it is read again");
}

/// Each counter reports its own hits, so that the order of those that are still missing in the store would be lost.
#[test]
fn the_store_decides_while_hits_of_siblings_are_missing() {
    let must_decide = |fixture: &Fixture, direction, hits| {
        fixture.counter.must_decide_in_order(direction, Hits(hits), fixture.now)
    };
    let (mut old, mut new) = siblings(&[sliding(100, 60)], &[sliding(100, 60), fixed(1_000, 3_600)]);
    assert!(!must_decide(&new, Direction::Take, 1) && !new.counter.may_have_siblings());
    assert!(!old.counter.must_settle(true, old.now), "nothing was counted");
    introduce(&mut new, &old);
    assert!(new.counter.may_have_siblings() && !new.counter.has_unsettled_siblings(new.now));
    assert!(!must_decide(&new, Direction::Take, 1));
    // each of these is unknown to the store, or counted otherwise
    let facts: [fn(&mut Fixture); 5] = [
        |old| {
            old.count(1);
        },
        |old| {
            old.count(1);
            old.reports();
        },
        |old| old.hold(2, millis(300)),
        |old| {
            old.hold(2, millis(300));
            let _ = old.decide(2);
        },
        |old| {
            old.hold(2, millis(300));
            old.counter.return_leases();
        },
    ];
    for (i, fact) in facts.into_iter().enumerate() {
        let (mut old, mut new) = siblings(&[sliding(100, 60)], &[sliding(100, 60), fixed(1_000, 3_600)]);
        fact(&mut old);
        assert!(old.counter.is_unsettled(old.now) && old.counter.must_settle(false, old.now), "fact {i}");
        introduce(&mut new, &old);
        assert!(new.counter.has_unsettled_siblings(new.now), "fact {i}");
        assert!(must_decide(&new, Direction::Take, 1) && must_decide(&new, Direction::Take, 0), "fact {i}");
        assert!(new.counter.replacement(new.now).is_none(), "fact {i}");
        new.counter.mode = Coordination::Local;
        assert!(!must_decide(&new, Direction::Take, 1), "fact {i}: not shared");
        new.counter.clear_siblings();
        assert!(!new.counter.has_unsettled_siblings(new.now), "fact {i}");
    }
    // a sibling has changed some of its tiers in the store: hits that count make them equal again
    new.counter.note_change_of_sibling();
    assert!(must_decide(&new, Direction::Take, 1) && must_decide(&new, Direction::GiveBack, 0));
    assert!(!must_decide(&new, Direction::Take, 0) && !must_decide(&new, Direction::Take, 101));
    new.counter.note_change();
    assert!(!must_decide(&new, Direction::Take, 1));
    // in fixed windows alone there is no version, but hits of siblings would return a lease
    for (mode, must) in [(Coordination::Interval, false), (Coordination::Lease, true)] {
        let mut windows = Fixture::new(&[fixed(100, 60)], 2);
        windows.counter.mode = mode;
        windows.counter.note_change_of_sibling();
        assert_eq!(must_decide(&windows, Direction::Take, 1), must, "{mode:?}");
        assert!(!must_decide(&windows, Direction::Take, 101), "{mode:?}");
    }
    let mut strict = Fixture::new(&[strict_bucket(100, 60)], 2);
    strict.counter.note_change_of_sibling();
    assert!(must_decide(&strict, Direction::Take, 101), "the rejection counts");
}

#[test]
fn a_counter_whose_siblings_are_gone_is_an_ordinary_one() {
    for (tier, has_changed, stays) in [
        (fixed(100, 60), false, false),
        (fixed(100, 60), true, false),
        (sliding(100, 60), false, false),
        (sliding(100, 60), true, true),
    ] {
        let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
        let other = Fixture::new(&[tier.clone(), fixed(1_000, 3_600)], 2);
        introduce(&mut fixture, &other);
        assert!(fixture.counter.may_have_siblings());
        if has_changed {
            fixture.counter.note_change_of_sibling();
        }
        fixture.counter.set_siblings(Vec::new());
        assert_eq!(fixture.counter.may_have_siblings(), stays, "{tier}");
        assert_eq!(!fixture.counter.rare.is_nothing(), stays, "{tier}");
    }
}

/// A reload has put another limit in the place of this one, which needs no leases any more; a request's own limit does not.
#[test]
fn leases_of_a_replaced_limit_are_returned() {
    for (is_of_rule, has_rule, left) in [(true, true, 0), (true, false, 4), (false, true, 4)] {
        let mut fixture = Fixture::new(&[sliding(100, 60)], 2);
        fixture.hold(4, millis(300));
        assert!(!fixture.counter.is_of_rule());
        if has_rule {
            super::lifetime::adopt_rule(&mut fixture);
        }
        assert!(fixture.counter.must_settle(is_of_rule, fixture.now));
        assert_eq!(fixture.counter.leased_hits(), left);
    }
}

/// Without anything to report, the store still has to learn which of the granted hits were used.
#[test]
fn settling_sends_the_exact_state() {
    let mut fixture = Fixture::new(&[sliding(100, 60)], 2);
    fixture.hold(4, millis(300));
    let _ = fixture.decide(4);
    fixture.wait(millis(7));
    fixture.ask(0, Asks::Look);
    let composed = fixture.compose();
    let report = composed[0].0.exchange.reports.last().expect("a report");
    assert!(report.at == fixture.now && report.replaces.is_some() && report.change.is_none());
    fixture.ask(0, Asks::Look);
    assert!(fixture.compose().is_empty(), "one is on its way");
    fixture.counter.take_tries();
    fixture.deliver(composed);
    assert!(fixture.counter.is_settled() && !fixture.counter.is_unsettled(fixture.now));
    let mut pending = Fixture::new(&[sliding(100, 60)], 2);
    pending.count(3);
    pending.ask(0, Asks::Look);
    let composed = pending.compose();
    assert_eq!(composed[0].0.exchange.reports.last().map(|report| report.change.hits), Some(3));
}

#[test]
fn a_sibling_adopts_the_states_that_both_have() {
    let (mut old, mut new) = siblings(&[sliding(100, 60)], &[sliding(100, 60), fixed(200, 3_600)]);
    old.count(30);
    old.flush();
    let version = old.counter.version;
    assert!(version > 0);
    new.count(1);
    new.counter.adopt_states(&old.counter.states());
    assert_eq!(new.counter.estimate.iter().map(|state| state.used().0).collect::<Vec<_>>(), [30, 1]);
    assert_eq!((new.counter.version, new.counter.is_version_lost), (version, false));
    // a bucket that the other does not know has a version of its own
    let mut more = Fixture::new(&[sliding(100, 60), bucket(200, 60)], 2);
    more.counter.adopt_states(&old.counter.states());
    assert_eq!((more.counter.estimate[0].used(), more.counter.version), (Hits(30), 0));
    // and one that has lost it, or never had a reply, does not know it
    old.counter.lose_version();
    let unknown = Fixture::new(&[sliding(100, 60)], 2);
    for states in [old.counter.states(), unknown.counter.states()] {
        let mut other = Fixture::new(&[sliding(100, 60)], 2);
        other.counter.version = 5;
        other.counter.lose_version();
        other.counter.adopt_states(&states);
        assert!(other.counter.is_version_lost && other.counter.version == 5);
    }
}

/// It is removed if the store has its hits and a sibling knows its states.
#[test]
fn a_counter_is_spare_if_a_sibling_knows_what_it_knows() {
    let (mut old, new) = siblings(&[fixed(100, 60)], &[fixed(100, 60), fixed(1_000, 3_600)]);
    let states = new.counter.states();
    assert!(old.counter.is_spare(&states, old.now));
    old.count(3);
    assert!(!old.counter.is_spare(&states, old.now), "it is pending");
    old.flush();
    assert!(old.counter.is_spare(&states, old.now) && !old.counter.is_idle(old.now));
    let own = Fixture::new(&[fixed(100, 60), fixed(1_000, 3_600)], 2);
    let one = Fixture::new(&[fixed(100, 60)], 2).counter.states();
    assert!(!own.counter.is_spare(&one, START), "its hour is its own");
    assert!(own.counter.is_spare(&one, START.after(Period::from_secs(3_600))));
}
