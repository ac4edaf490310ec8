//! What is requested, granted, admitted and denied.

use super::*;
use crate::store::remote::{Run, UnusedHits};

const NANO: Period = Period::from_nanos(1);

/// Returns the hits that the tries ask for, and those that are to be held with them.
fn requested(composed: &Composed) -> (u64, u64) {
    let runs = composed.iter().flat_map(|(_, sent)| &sent.runs);
    (runs.map(Run::all_hits).sum(), held(composed).map_or(0, |hold| hold.want))
}

/// In order of arrival, so that a try that does not fit leaves room for a smaller one.
#[test]
fn one_exchange_decides_all_tries_that_wait() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 4);
    for hits in [5, 2, 2, 3] {
        fixture.ask(hits, Asks::Lease(OverLimitPolicy::Ignore));
        assert!(fixture.counter.has_tries() && !fixture.counter.is_idle(START));
    }
    let composed = fixture.compose();
    assert_eq!((composed.len(), requested(&composed)), (1, (12, 0)));
    assert!(!fixture.counter.has_tries());
    // only four are left
    assert_eq!(fixture.take_elsewhere(96), 96);
    assert_eq!(fixture.deliver(composed), 4);
    let decided = fixture.waiting.iter_mut().map(|outcome| {
        let tried = outcome.take_or_leave().expect("it is decided").expect("the store has replied");
        (tried.decision.over, tried.decision.remaining)
    });
    assert_eq!(decided.collect::<Vec<_>>(), [(true, 4), (false, 2), (false, 0), (true, 0)]);
    assert_eq!(fixture.counter.leased_hits(), 0);
}

#[test]
fn nothing_is_requested_that_nobody_needs() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 4);
    assert!(fixture.fetch().is_empty());
    // what is pending is reported nevertheless
    fixture.count(3);
    let composed = fixture.fetch();
    assert_eq!((composed.len(), composed[0].0.exchange.reports.len(), requested(&composed)), (1, 1, (0, 0)));
    fixture.deliver(composed);
    assert_eq!(fixture.left_in_store(), 97);
    assert!(!fixture.counter.has_unacknowledged());
}

/// A few hits more than the waiting ones are kept, so that no request waits after a lull.
#[test]
fn few_hits_are_requested_without_demand() {
    for (tiers, instances, want) in [
        (vec![fixed(1_000, 3_600)], 1, 125),
        (vec![fixed(1_000, 3_600)], 4, 2),
        (vec![sliding(1_000, 60)], 1, 125),
        (vec![sliding(1_000, 60)], 4, 0),
        (vec![bucket(1_000, 60)], 4, 0),
        (vec![bucket(1_000, 60), fixed(1_000, 3_600)], 1, 0),
    ] {
        let mut fixture = Fixture::new(&tiers, instances);
        assert_eq!(requested(&fixture.request(1)), (1, want), "{tiers:?}, {instances}");
    }
}

/// A lease lasts a quarter of the rest of a window, or the hold of another algorithm, and is never more than half of
/// this instance's part of a window, or its part of what flows.
#[test]
fn the_demand_decides_how_many_hits_are_requested() {
    for (tiers, instances, late, expected) in [
        // 1,000 hits a second for 4 s, and for 2 s
        (vec![fixed(100_000, 16)], 2, 0, 3_900..=4_100),
        (vec![fixed(100_000, 16)], 2, 8_000, 1_950..=2_050),
        // 50 ms at least
        (vec![fixed(2_000, 1)], 2, 900, 45..=55),
        // the hold of a sliding window is a hundredth of its period
        (vec![sliding(100_000, 40)], 2, 0, 390..=410),
        // half of a quarter, and a third
        (vec![fixed(400, 16)], 4, 0, 50..=50),
        (vec![sliding(300, 60)], 3, 0, 100..=100),
    ] {
        let mut fixture = Fixture::new(&tiers, instances);
        // after the start of a window
        fixture.wait(millis(3_600_000 - 600 + late));
        fixture.demand(millis(1), 600);
        let (needed, ahead) = requested(&fixture.request(1));
        assert!(expected.contains(&(needed + ahead)), "{tiers:?}, {instances}: {ahead}");
    }
}

/// Two hits ahead save hardly a call, and would be missing where others arrive.
#[test]
fn several_instances_lease_no_less_than_three_hits_ahead() {
    // a sliding window of 10 s has a hold of 100 ms
    for (tier, every, want) in [
        (sliding(1_000, 10), 50, 0),
        (sliding(1_000, 10), 25, 3),
        (fixed(16, 3_600), 50, 0),
        (fixed(32, 3_600), 50, 3),
    ] {
        let mut fixture = Fixture::new(std::slice::from_ref(&tier), 4);
        fixture.demand(millis(every), 600 / every);
        assert_eq!(requested(&fixture.request(1)), (1, want), "{tier:?}, a hit in {every} ms");
    }
}

/// The hits that are leased ahead must not flow back into a bucket before they are used.
#[test]
fn hits_of_a_bucket_are_leased_ahead_only_if_it_has_room_for_more_than_flows_back() {
    for (taken, most) in [(0, 0), (51, 0), (151, 50), (451, 200)] {
        let mut fixture = Fixture::new(&[bucket(1_000, 60)], 2);
        fixture.demand(millis(1), 600);
        assert_eq!(fixture.take_elsewhere(taken), taken);
        fixture.read();
        // 51 flow back during the hold, and are taken by both
        assert_eq!(requested(&fixture.request(1)), (1, most), "{taken} taken");
    }
}

#[test]
fn the_pause_rejects_what_no_lease_covers_until_it_ends() {
    let mut fixture = Fixture::new(&[bucket(100, 10)], 3);
    fixture.counter.plan.denied_until = START.after(millis(40));
    let denied = fixture.decide(1).expect("the store is not asked");
    assert!(denied.over);
    assert_eq!((denied.reset, denied.remaining), (millis(40), 100));
    fixture.now = Timestamp::from_nanos(START.as_nanos() + 39_999_999);
    assert!(fixture.counter.is_denied(fixture.now));
    assert!(fixture.decide(1).is_some_and(|denied| denied.over && denied.reset == NANO));
    fixture.wait(NANO);
    assert!(!fixture.counter.is_denied(fixture.now));
    assert!(fixture.decide(1).is_none(), "the store has to be asked");
    fixture.hold(1, millis(100));
    fixture.counter.plan.denied_until = fixture.now.after(millis(40));
    assert!(fixture.decide(1).is_some_and(|decision| !decision.over), "what is leased may be used");
}

#[test]
fn a_denial_is_cached_until_it_ends_or_something_is_given_back() {
    let mut fixture = Fixture::new(&[fixed(10, 60)], 3);
    let cached = |fixture: &Fixture, hits| {
        let answer = fixture.counter.answer(Coordination::Strict, &taking(hits), &link(3, fixture.now));
        answer == Answer::Reject(Denial::Cached)
    };
    assert_eq!(fixture.take_elsewhere(10), 10);
    fixture.read();
    assert!(!cached(&fixture, 1), "the store has not denied anything");
    fixture.counter.deny_while_empty(fixture.now);
    assert!(cached(&fixture, 1) && cached(&fixture, 5));
    assert!(!cached(&fixture, 0), "a check with no hits passes");
    fixture.give_back(2);
    assert!(!cached(&fixture, 1) && !cached(&fixture, 2) && !cached(&fixture, 5));
    fixture.count(2);
    assert!(cached(&fixture, 1));
    fixture.now = Timestamp::from_nanos(START.after(Period::from_secs(60)).as_nanos() - 1);
    assert!(cached(&fixture, 1));
    fixture.wait(NANO);
    assert!(!cached(&fixture, 1), "the window is over");
    fixture.counter.deny_while_empty(fixture.now);
    assert!(!fixture.counter.is_denied(fixture.now));
}

#[test]
fn spent_hits_of_a_rejected_request_are_put_back() {
    for (tier, instances) in [(fixed(100, 60), 3), (bucket(100, 60), 1), (sliding(100, 60), 1)] {
        let mut fixture = Fixture::new(&[tier], instances);
        fixture.hold(6, millis(300));
        assert!(fixture.decide(4).is_some_and(|decision| !decision.over));
        let until = fixture.counter.leases()[0].until;
        fixture.counter.unspend(Hits(4), fixture.now);
        assert_eq!((fixture.counter.leased_hits(), fixture.counter.remaining(fixture.now)), (6, 100));
        assert_eq!(fixture.counter.leases()[0].until, until);
        assert_eq!(fixture.left_in_store(), 94);
        // without the rest of the lease, they are given back to the store
        assert!(fixture.decide(6).is_some_and(|decision| !decision.over));
        fixture.counter.unspend(Hits(6), fixture.now);
        assert_eq!(fixture.counter.remaining(fixture.now), 100);
        assert_eq!(fixture.counter.owed_hits().stranded, 6);
        let commands = fixture.take();
        let unused = commands[0].0.exchange.reports.last().and_then(|report| report.unused);
        assert_eq!(unused, Some(UnusedHits { hits: 6, until: fixture.now }));
        fixture.deliver(commands);
        assert_eq!((fixture.left_in_store(), fixture.counter.remaining(fixture.now)), (100, 100));
    }
}

/// Other hits of the request were waited for meanwhile.
#[test]
fn hits_of_an_ended_window_are_put_back_into_no_later_one() {
    let puts_back: [fn(&mut LocalCounter, Timestamp); 2] =
        [|counter, at| counter.unspend(Hits(1), at), |counter, at| counter.uncount(Hits(1), at)];
    for put_back in puts_back {
        let mut fixture = Fixture::new(&[fixed(100, 60)], 3);
        fixture.hold(1, Period::default());
        assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
        let at = fixture.now;
        fixture.wait(Period::from_secs(60));
        fixture.counter.expire_leases(fixture.time());
        fixture.hold(5, Period::default());
        assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
        put_back(&mut fixture.counter, at);
        assert_eq!((fixture.counter.leased_hits(), fixture.counter.remaining(fixture.now)), (4, 99));
        fixture.flush();
        assert_eq!(fixture.left_in_store(), 95);
    }
}

/// It holds the most that a limit can be, and another lease held the hits that are put back.
#[test]
fn hits_for_which_a_lease_has_no_room_are_given_back_to_the_store() {
    let mut fixture = Fixture::new(&[fixed(u32::MAX, 60)], 3);
    fixture.hold(u32::MAX.into(), Period::default());
    fixture.counter.unspend(Hits(7), fixture.now);
    assert_eq!(
        (fixture.counter.leased_hits(), fixture.counter.owed_hits().stranded),
        (4_294_967_295, 4_294_967_302)
    );
}

#[test]
fn counted_hits_of_a_rejected_request_are_given_back() {
    for tier in [fixed(100, 60), bucket(100, 60), sliding(100, 60)] {
        let mut fixture = Fixture::new(&[tier], 3);
        fixture.count(7);
        fixture.flush();
        let at = fixture.now;
        fixture.wait(millis(3));
        fixture.counter.uncount(Hits(7), at);
        assert_eq!(fixture.counter.remaining(fixture.now), 100);
        let commands = fixture.take();
        let unused = commands[0].0.exchange.reports.last().and_then(|report| report.unused);
        assert_eq!(unused, Some(UnusedHits { hits: 7, until: at }));
        assert_eq!(fixture.left_in_store(), 93);
        fixture.deliver(commands);
        assert_eq!(fixture.left_in_store(), 100);
    }
}

#[test]
fn the_lease_that_ends_first_is_spent_first() {
    let mut fixture = Fixture::new(&[sliding(100, 60)], 3);
    for (hits, hold) in [(5, 300), (4, 100), (3, 200)] {
        fixture.hold(hits, millis(hold));
    }
    let left = |fixture: &Fixture| -> Vec<u32> { fixture.counter.leases().iter().map(|l| l.left).collect() };
    assert_eq!(left(&fixture), [4, 3, 5]);
    for (hits, expected) in [(3, vec![1, 3, 5]), (1, vec![3, 5]), (5, vec![3]), (3, vec![])] {
        assert!(fixture.decide(hits).is_some_and(|decision| !decision.over));
        assert_eq!(left(&fixture), expected);
    }
    assert!(fixture.decide(1).is_none());
    assert_eq!((fixture.counter.remaining(fixture.now), fixture.left_in_store()), (88, 88));
}

/// First after a quarter of a second. The intervals double until something was granted.
#[test]
fn an_instance_that_rejects_looks_for_returned_hits_in_growing_intervals() {
    let mut fixture = Fixture::new(&[fixed(10, 3_600)], 3);
    let mut reads = Vec::new();
    for elapsed in 0..4_000 {
        fixture.now = START.after(millis(elapsed));
        fixture.counter.look_for_returned(fixture.now);
        if fixture.counter.has_pending() {
            reads.push(elapsed);
            fixture.flush();
        }
    }
    assert_eq!(reads, [250, 750, 1_750, 3_750]);
    fixture.lease(1);
    let granted = fixture.now;
    while !fixture.counter.has_pending() {
        fixture.counter.look_for_returned(fixture.now);
        fixture.wait(millis(1));
    }
    assert_eq!(fixture.now.since(granted), millis(251));
    let mut alone = Fixture::new(&[fixed(10, 3_600)], 1);
    for _ in 0..2 {
        alone.counter.look_for_returned(alone.now);
        alone.wait(Period::from_secs(9));
    }
    assert!(!alone.counter.has_pending(), "nobody returns anything");
}

/// A later lease is of hits that the store counts for longer.
#[test]
fn hits_that_flow_back_are_put_back_into_no_other_lease() {
    for tier in [bucket(100, 60), sliding(100, 60)] {
        let mut fixture = Fixture::new(&[tier], 3);
        fixture.hold(1, millis(50));
        fixture.hold(5, millis(300));
        assert!(fixture.decide(1).is_some_and(|decision| !decision.over));
        fixture.counter.unspend(Hits(1), fixture.now);
        assert_eq!((fixture.counter.leased_hits(), fixture.counter.owed_hits().stranded), (5, 6));
        assert_eq!(fixture.counter.remaining(fixture.now), 100);
    }
}

/// Where rejected hits count, others may use up the window of what is held.
#[test]
fn a_lease_goes_back_once_no_hit_is_left_and_not_before() {
    for (elsewhere, left) in [(4, 3), (20, 0)] {
        let mut fixture = Fixture::with_policy(&[fixed(10, 60)], 2, OverLimitPolicy::Count);
        fixture.hold(3, Period::from_secs(30));
        fixture.take_elsewhere(elsewhere);
        fixture.read();
        fixture.counter.return_useless(fixture.now);
        assert_eq!(fixture.counter.leased_hits(), left, "{elsewhere} hits of another instance");
    }
}

/// It costs no call then. One that is larger passes beside it.
#[test]
fn a_try_waits_for_a_hold_that_may_cover_it_and_for_no_other_one() {
    for (more, leaves) in [(0, false), (1, true)] {
        let mut fixture = Fixture::new(&[fixed(100_000, 60)], 2);
        fixture.demand(millis(1), 600);
        let (_, want) = requested(&fixture.request(1));
        assert!(want > 1, "{want} hits are to be held");
        assert_eq!(!fixture.request(want + more).is_empty(), leaves, "{more} more than {want}");
    }
}
