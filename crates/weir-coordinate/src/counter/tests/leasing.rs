//! What is requested, granted, admitted and denied.

use super::*;
use weir_limit::algorithm::CountChange;
use weir_store::remote::{Run, UnusedHits};

const NANO: Period = Period::from_nanos(1);

/// Returns the hits that the tries ask for, and those that are to be leased with them.
fn requested(composed: &Composed) -> (u64, u64) {
    let runs = composed.iter().flat_map(|(_, sent)| &sent.runs);
    (runs.map(Run::all_hits).sum(), lease_request(composed).map_or(0, |lease| lease.want))
}

/// Returns the hits to lease beside `needed` ones.
fn ahead(fixture: &Fixture, needed: u64) -> u64 {
    let lease = fixture.counter.next_lease(needed, 0, &fixture.link());
    lease.map_or(0, |lease| lease.want)
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

/// A later lease is of hits that the store counts for longer.
#[test]
fn spent_hits_of_a_rejected_request_go_back_to_the_store() {
    for (tier, instances) in
        [(fixed(100, 60), 3), (bucket(100, 60), 1), (sliding(100, 60), 1), (sliding(100, 60), 3)]
    {
        let mut fixture = Fixture::new(&[tier], instances);
        fixture.grant_lease(6, millis(300));
        assert!(fixture.decide(6).is_some_and(|decision| !decision.over));
        fixture.counter.uncount(Hits(6), fixture.now);
        assert_eq!(fixture.counter.remaining(fixture.now), 100);
        assert_eq!(fixture.counter.ledger.owed().stranded, 6);
        let commands = fixture.take();
        let unused = commands[0].0.exchange.reports.last().and_then(|report| report.unused);
        assert_eq!(unused, Some(UnusedHits { hits: 6, until: fixture.now }));
        fixture.deliver(commands);
        assert_eq!((fixture.left_in_store(), fixture.counter.remaining(fixture.now)), (100, 100));
    }
}

/// It costs no call then. One that is larger passes beside it.
#[test]
fn a_try_waits_for_a_hold_that_may_cover_it_and_for_no_other_one() {
    for (more, leaves) in [(0, false), (1, true)] {
        let mut fixture = Fixture::new(&[fixed(100_000, 60)], 2);
        fixture.demand(millis(1), 600);
        let (_, want) = requested(&fixture.request(1));
        assert!(want > 1, "{want} hits are to be leased");
        assert_eq!(!fixture.request(want + more).is_empty(), leaves, "{more} more than {want}");
    }
}

#[test]
fn hits_are_leased_ahead_from_the_first_span_of_a_demand_on_and_with_each_later_one() {
    let mut first = Fixture::new(&[fixed(100_000, 3_600)], 2);
    first.demand(millis(1), 25);
    assert!(ahead(&first, 0) > 0);
    // a span that has just begun has few hits
    let mut next = Fixture::new(&[fixed(100_000, 3_600)], 2);
    next.demand(millis(1), 600);
    next.wait(millis(25));
    for _ in 0..9 {
        next.counter.demand.record(1, next.now);
    }
    next.demand(millis(25), 1);
    assert!(ahead(&next, 0) > 0);
}

/// A sliding window counts them until then.
#[test]
fn hits_of_a_sliding_window_are_held_for_half_as_long_again_as_they_are_expected_to_last() {
    let mut fixture = Fixture::new(&[sliding(300, 60)], 3);
    fixture.demand(millis(1), 600);
    let LeaseRequest { want, hold, .. } = lease_request(&fixture.request(1)).expect("hits are likely");
    let used_up = fixture.counter.demand.time_for(1 + want, fixture.now).as_nanos();
    assert!((90..=110).contains(&want) && used_up > 80_000_000, "{want}, {used_up} ns");
    // and for two leads of 10 ms
    assert_eq!(hold.as_nanos(), used_up + used_up / 2 + 20_000_000);
}

#[test]
fn a_grant_does_not_change_pending_hits_that_were_taken_or_are_of_another_window() {
    let change = |fixture: &Fixture| fixture.counter.ledger.pending()[0].change;
    let mut taken = Fixture::new(&[fixed(100, 60)], 2);
    let composed = taken.request(6);
    taken.count(2);
    taken.deliver(composed);
    assert_eq!(change(&taken), CountChange::of(2));
    let mut earlier = Fixture::new(&[fixed(100, 60)], 2);
    earlier.wait(millis(59_990));
    let composed = earlier.request(6);
    earlier.give_back(2);
    earlier.wait(millis(20));
    assert!(earlier.deliver(composed) >= 6);
    assert_eq!(change(&earlier), CountChange::of(-2));
}

/// An idle stock would be requested again whenever it is returned.
#[test]
fn a_stock_is_kept_only_beside_hits_that_are_needed_and_of_an_eighth_of_the_rest() {
    for (taken, kept) in [(0, 125), (900, 12), (993, 0)] {
        let mut fixture = Fixture::new(&[fixed(1_000, 3_600)], 1);
        fixture.count(taken);
        assert_eq!((ahead(&fixture, 0), ahead(&fixture, 1)), (0, kept), "{taken} taken");
    }
}

#[test]
fn what_may_be_kept_unused_is_missing_nowhere() {
    let (window, bucket) = (fixed(1_000, 60), bucket(1_000, 60));
    for (tiers, policy, [alone, of_two, of_three, of_many]) in [
        (vec![window.clone()], OverLimitPolicy::Ignore, [125, 5, 3, 0]),
        (vec![sliding(1_000, 60)], OverLimitPolicy::Ignore, [125, 5, 3, 0]),
        (vec![bucket.clone()], OverLimitPolicy::Ignore, [125, 0, 0, 0]),
        (vec![window.clone(), bucket], OverLimitPolicy::Ignore, [0, 0, 0, 0]),
        (vec![window], OverLimitPolicy::Count, [125, 0, 0, 0]),
    ] {
        for (instances, kept) in [(1, alone), (2, of_two), (3, of_three), (11, of_many)] {
            let fixture = Fixture::with_policy(&tiers, instances, policy);
            assert_eq!(fixture.counter.idle_allowance(), kept, "{tiers:?}, {instances}");
        }
    }
}

#[test]
fn a_lease_is_requested_before_the_last_is_used_up_but_not_while_all_is_denied() {
    let soon = millis(4);
    let fixture = |left: u64| {
        let mut fixture = Fixture::new(&[fixed(1_000, 3_600)], 2);
        fixture.demand(millis(1), 600);
        fixture.grant_lease(left, millis(500));
        fixture
    };
    let expected = fixture(1).counter.demand.in_the_next(soon, fixture(1).now);
    assert!(expected >= 3);
    for (left, runs_low) in [(expected - 1, true), (expected, false)] {
        let fixture = fixture(left);
        assert_eq!(fixture.counter.runs_low(soon, fixture.now), runs_low, "{left}");
    }
    let mut denied = fixture(1);
    denied.counter.plan.denied_until = denied.now.after(NANO);
    assert!(!denied.counter.runs_low(soon, denied.now));
    denied.wait(NANO);
    assert!(denied.counter.runs_low(soon, denied.now));
    denied.count(1_000);
    assert!(!denied.counter.runs_low(soon, denied.now), "nothing is left");
}

/// Three expected hits and two round trips earlier, but not in the first half of the pause.
#[test]
fn the_call_that_ends_a_pause_is_sent_a_little_earlier() {
    for (every, times, lead) in [(1, 600, 7), (200, 30, 500)] {
        let mut fixture = Fixture::new(&[bucket(100, 10)], 3);
        fixture.demand(millis(every), times);
        fixture.read();
        fixture.count(100);
        fixture.counter.pause_if_scarce(true, millis(2), fixture.now);
        let until = fixture.counter.plan.denied_until;
        assert_eq!(until, fixture.now.after(millis(1_000)), "a hit each {every} ms");
        let is_ending = |ms: &u64| {
            fixture.now = until.before(millis(1_000 - ms));
            if ms.is_multiple_of(every) {
                fixture.counter.demand.record(1, fixture.now);
            }
            fixture.counter.ends_pause(fixture.now)
        };
        let calls: Vec<u64> = (0..1_000).filter(is_ending).collect();
        assert!(
            calls.len() == 1 && calls[0].abs_diff(1_000 - lead) <= 1,
            "{calls:?} with a hit each {every} ms"
        );
    }
}

#[test]
fn only_tokens_of_several_instances_are_scarce() {
    for (tier, instances, taken, was_scarce, expected) in [
        (bucket(100, 10), 1, 100, true, (true, false)),
        (fixed(100, 10), 3, 100, false, (false, false)),
        (bucket(100, 10), 3, 100, false, (true, true)),
        // one for each instance is left, and then half of the bucket
        (bucket(100, 10), 3, 97, false, (false, false)),
        (bucket(100, 10), 3, 97, true, (true, true)),
        (bucket(100, 10), 3, 50, true, (false, false)),
    ] {
        let mut fixture = Fixture::new(&[tier], instances);
        fixture.demand(millis(1), 600);
        fixture.count(taken);
        fixture.counter.plan.is_scarce = was_scarce;
        fixture.counter.pause_if_scarce(false, millis(2), fixture.now);
        assert_eq!(
            (fixture.counter.plan.is_scarce, fixture.counter.is_denied(fixture.now)),
            expected,
            "{taken} of {instances}"
        );
    }
}
