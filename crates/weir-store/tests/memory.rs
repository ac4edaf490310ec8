//! Tests the memory store: counting under several threads, its bound, requests as a whole, and reservations.

use std::{collections::HashMap, sync::Arc, thread};

use proptest::{collection::vec, prelude::*};
use weir_limit::{
    Algorithm, Bucket, Decision, Descriptor, Domain, Entry, Hits, KeyHasher, Limit, LimitCheck, Matched,
    OverLimitPolicy, Period, Refill, Request, Reservation, ReservationRequest, Rule, RuleNode, RuleSet,
    RuntimeLimit, Scope, Tier, Timestamp, Unit, Values,
    request_bucket::{BucketName, BucketReply, BucketRequest, StepLimit, StepRequest},
};
use weir_store::MemoryStore;

/// Returns rules that allow each value of the key `k` `limit` requests per minute.
fn rules(limit: u32) -> RuleSet {
    let rule = Rule::new(Limit::fixed_window(limit, Period::from_secs(60)));
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
    RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random())
}

fn descriptor(value: &str) -> Descriptor<'_> {
    Descriptor { entries: [Entry { key: "k", value }].into_iter().collect(), ..Descriptor::default() }
}

/// Takes `hits` of each of `values`, in one request.
fn take(
    store: &MemoryStore,
    rules: &RuleSet,
    values: &[&str],
    hits: u32,
    scope: Scope,
    now: Timestamp,
) -> Vec<Decision> {
    let descriptors = values.iter().map(|value| descriptor(value)).collect();
    let request = Request { domain: "d", descriptors, hits };
    let matched = Matched::new(rules, &request);
    store.decide(&matched.checks, scope, now).into_vec()
}

#[test]
fn exactly_the_limit_is_admitted_across_threads() {
    let (store, rules) = (Arc::new(MemoryStore::new(1_000)), Arc::new(rules(1_000)));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (store, rules) = (Arc::clone(&store), Arc::clone(&rules));
            thread::spawn(move || {
                let attempt = || take(&store, &rules, &["v"], 1, Scope::Descriptor, Timestamp::from_secs(1));
                (0..500).filter(|_| !attempt()[0].over).count()
            })
        })
        .collect();
    let admitted: usize = threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum();
    assert_eq!(admitted, 1_000);
}

#[test]
fn a_request_takes_all_or_nothing_while_threads_use_its_keys_in_other_orders() {
    let (store, rules) = (Arc::new(MemoryStore::new(1_000_000)), Arc::new(rules(100)));
    let orders: [&[&str]; 3] = [&["a", "b", "c"], &["c", "a", "b"], &["b", "c", "a"]];
    let threads: Vec<_> = orders
        .into_iter()
        .map(|order| {
            let (store, rules) = (Arc::clone(&store), Arc::clone(&rules));
            thread::spawn(move || {
                let attempt = || take(&store, &rules, order, 1, Scope::Request, Timestamp::from_secs(1));
                (0..200).filter(|_| attempt().iter().all(|decision| !decision.over)).count()
            })
        })
        .collect();
    let admitted: usize = threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum();
    assert_eq!(admitted, 100);
    for value in ["a", "b", "c"] {
        // rejected requests took nothing
        let decisions = take(&store, &rules, &[value], 1, Scope::Descriptor, Timestamp::from_secs(1));
        assert_eq!(decisions[0].before.0, 100, "{value}");
    }
}

#[test]
fn with_request_scope_no_descriptor_of_a_rejected_request_counts() {
    let (store, rules) = (MemoryStore::new(1_000), rules(2));
    let now = Timestamp::from_secs(1);
    take(&store, &rules, &["full"], 2, Scope::Request, now);
    for _ in 0..5 {
        let decisions = take(&store, &rules, &["free", "full"], 1, Scope::Request, now);
        assert!(!decisions[0].over && decisions[1].over);
        assert_eq!(decisions[0].remaining, 2, "the rejected request took nothing");
    }
    let decisions = take(&store, &rules, &["full"], 1, Scope::Request, now);
    assert_eq!(decisions[0].before.0, 2, "the rejected descriptor did not count either");
}

#[test]
fn a_counter_that_a_request_uses_twice_counts_twice_or_not_at_all() {
    let (store, rules) = (MemoryStore::new(1_000), rules(3));
    let now = Timestamp::from_secs(1);
    let both = || take(&store, &rules, &["v", "v"], 1, Scope::Request, now);
    assert!(both().iter().all(|decision| !decision.over));
    assert!(both()[1].over, "only one of the two fits");
    let third = take(&store, &rules, &["v"], 1, Scope::Request, now)[0];
    assert!(!third.over && third.before.0 == 2, "neither of the two was counted");
}

#[test]
fn a_check_without_hits_creates_no_counter() {
    let (store, rules) = (MemoryStore::new(1_000), rules(3));
    let request = Request {
        domain: "d",
        descriptors: [Descriptor { hits: Some(0), ..descriptor("v") }].into_iter().collect(),
        hits: 0,
    };
    let matched = Matched::new(&rules, &request);
    let decisions = store.decide(&matched.checks, Scope::Descriptor, Timestamp::from_secs(1));
    assert_eq!(decisions[0].remaining, 3);
    assert_eq!(store.usage().live, 0);
}

#[test]
fn a_rule_and_an_override_share_a_counter_only_if_their_units_are_equal() {
    let (store, rules) = (MemoryStore::new(1_000), rules(10));
    let now = Timestamp::from_secs(1);
    take(&store, &rules, &["v"], 4, Scope::Descriptor, now);
    let with_override = |unit| {
        let limit = Some(Box::new(RuntimeLimit::per_unit(10, unit)));
        let descriptors = [Descriptor { limit, hits: Some(0), ..descriptor("v") }];
        let request = Request { domain: "d", descriptors: descriptors.into_iter().collect(), hits: 0 };
        let matched = Matched::new(&rules, &request);
        store.decide(&matched.checks, Scope::Descriptor, now)[0].remaining
    };
    assert_eq!(with_override(Unit::Minute), 6);
    assert_eq!(with_override(Unit::Hour), 10);
}

/// A full store evicts counters instead of rejecting requests or growing, and keeps the counters with the most hits.
#[test]
fn a_full_store_evicts_counters_with_few_hits_and_keeps_those_with_many() {
    for max in [1, 2, 100, 10_000] {
        let (store, rules) = (MemoryStore::new(max), rules(1_000));
        let now = Timestamp::from_secs(1);
        take(&store, &rules, &["costly"], 1_000, Scope::Descriptor, now);
        for i in 0..3 * max {
            let value = format!("flood {i}");
            assert!(!take(&store, &rules, &[&value], 1, Scope::Descriptor, now)[0].over);
            assert!(store.usage().live <= max, "{} of {max}", store.usage().live);
        }
        let (live, evicted) = (store.usage().live, store.usage().evicted);
        assert_eq!(live as u64 + evicted, 1 + 3 * max as u64, "every eviction is counted");
        assert!(live + 1 >= max, "no more than one place is kept for limits of requests");
        if max > 1 {
            assert!(take(&store, &rules, &["costly"], 1, Scope::Descriptor, now)[0].over, "of {max}");
        }
    }
}

/// Takes all `max` tokens of the bucket `name`, which are there again after `seconds`. Returns those that were there.
fn drain(
    store: &MemoryStore,
    hasher: KeyHasher,
    name: &str,
    (max, seconds): (u64, u64),
    now: Timestamp,
) -> u64 {
    let limit = StepLimit { max, refill: max, period_ms: seconds * 1_000 };
    let request = StepRequest { limit, take: max, at: None, strict: false, session: false };
    let name = BucketName::new(hasher, name.as_bytes());
    match store.decide_bucket_now(&name, &BucketRequest::Step(request), now) {
        BucketReply::Step(reply) => reply.tokens,
        BucketReply::Paced(reply) => panic!("{reply:?}"),
    }
}

/// Takes `hits` of limits that requests bring for the entries of `value`: as many as there are in a year.
fn take_of_year(store: &MemoryStore, rules: &RuleSet, value: &str, now: Timestamp) -> bool {
    let limit = Some(Box::new(RuntimeLimit::per_unit(u32::MAX, Unit::Year)));
    let descriptors = [Descriptor { limit, ..descriptor(value) }];
    let request = Request { domain: "d", descriptors: descriptors.into_iter().collect(), hits: u32::MAX };
    store.decide(&Matched::new(rules, &request).checks, Scope::Descriptor, now)[0].over
}

/// What requests invent is dear to lose: quintillions of tokens for weeks, or billions of requests for a year.
#[test]
fn what_requests_invent_evicts_no_counter_of_a_rule() {
    for max in [100, 10_000] {
        let (store, rules, hasher) = (MemoryStore::new(max), rules(5), KeyHasher::random());
        let now = Timestamp::from_secs(1);
        let values: Vec<String> = (0..max * 9 / 10).map(|i| i.to_string()).collect();
        for value in &values {
            assert!(!take(&store, &rules, &[value], 5, Scope::Descriptor, now)[0].over);
        }
        for i in 0..2 * max {
            let year = format!("year {i}");
            assert!(!take_of_year(&store, &rules, &year, now));
            drain(&store, hasher, &i.to_string(), (9_000_000_000_000_000_000, 4_000_000), now);
            drain(&store, hasher, "one", (9_000_000_000_000_000_000 - i as u64, 4_000_000), now);
            assert!(store.usage().live <= max, "{} of {max}", store.usage().live);
        }
        let again =
            values.iter().filter(|value| !take(&store, &rules, &[value], 5, Scope::Descriptor, now)[0].over);
        assert_eq!(again.count(), 0, "of {max}");
    }
}

/// A limit that came with a request and that a rule uses too is the rule's.
#[test]
fn a_counter_that_a_rule_uses_is_evicted_as_a_rules() {
    let (store, rules) = (MemoryStore::new(100), rules(5));
    let now = Timestamp::from_secs(1);
    let values: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    for value in &values {
        let limit = Some(Box::new(RuntimeLimit::per_unit(5, Unit::Minute)));
        let descriptors = [Descriptor { limit, ..descriptor(value) }];
        let request = Request { domain: "d", descriptors: descriptors.into_iter().collect(), hits: 1 };
        assert!(!store.decide(&Matched::new(&rules, &request).checks, Scope::Descriptor, now)[0].over);
        assert_eq!(take(&store, &rules, &[value], 4, Scope::Descriptor, now)[0].remaining, 0);
    }
    for i in 0..1_000 {
        assert!(!take_of_year(&store, &rules, &format!("year {i}"), now));
    }
    assert!(values.iter().all(|value| take(&store, &rules, &[value], 1, Scope::Descriptor, now)[0].over));
}

/// Returns how many of the buckets of the names from 0 to `names` are not full.
fn left(store: &MemoryStore, hasher: KeyHasher, names: u32, now: Timestamp) -> usize {
    let is_left = |i: &u32| {
        let name = i.to_string();
        store.find_buckets_now(&BucketName::new(hasher, name.as_bytes()), false, now).is_some()
    };
    (0..names).filter(is_left).count()
}

/// A flood of values leaves what requests bring a quarter of the table, also if it is cheap to lose.
#[test]
fn a_flood_of_values_leaves_limits_of_requests_their_share() {
    let (store, rules, hasher) = (MemoryStore::new(100), rules(5), KeyHasher::random());
    let now = Timestamp::from_secs(1);
    (0..25).for_each(|i| assert_eq!(drain(&store, hasher, &i.to_string(), (1, 10), now), 1));
    for i in 0..300 {
        assert!(!take(&store, &rules, &[&i.to_string()], 5, Scope::Descriptor, now)[0].over);
    }
    assert_eq!(left(&store, hasher, 25, now), 25);
}

/// What requests bring may have all the room that there is, until rules need it.
#[test]
fn a_flood_of_values_takes_what_limits_of_requests_have_beyond_their_share() {
    let (store, rules, hasher) = (MemoryStore::new(100), rules(5), KeyHasher::random());
    let now = Timestamp::from_secs(1);
    for i in 0..100 {
        drain(&store, hasher, &i.to_string(), (9_000_000_000_000_000_000, 4_000_000), now);
    }
    assert_eq!(left(&store, hasher, 100, now), 100);
    for i in 0..300 {
        take(&store, &rules, &[&i.to_string()], 5, Scope::Descriptor, now);
    }
    assert_eq!(left(&store, hasher, 100, now), 25);
}

/// Values that fill the table first do not keep out what requests bring.
#[test]
fn a_flood_of_values_does_not_keep_limits_of_requests_out() {
    let (store, rules, hasher) = (MemoryStore::new(100), rules(5), KeyHasher::random());
    let now = Timestamp::from_secs(1);
    let mut admitted = vec![0; 20];
    for i in 0..1_000 {
        assert!(!take(&store, &rules, &[&i.to_string()], 5, Scope::Descriptor, now)[0].over);
        if i >= 200 {
            admitted[i % 20] += drain(&store, hasher, &(i % 20).to_string(), (1, 10), now);
        }
    }
    // each was asked for 40 times; one that finds no place is admitted, and there is one for it soon
    assert!(admitted.iter().all(|admitted| *admitted <= 4), "{admitted:?}");
}

#[test]
fn the_sweep_removes_expired_counters_and_no_others() {
    let (store, rules) = (MemoryStore::new(100_000), rules(1_000));
    for i in 0..20_000_u64 {
        let now = Timestamp::from_secs(if i % 2 == 0 { 1 } else { 61 });
        take(&store, &rules, &[&i.to_string()], 1, Scope::Descriptor, now);
    }
    let sweep = |now| (0..store.sweep_steps()).for_each(|step| store.sweep_step(step, now));
    sweep(Timestamp::from_secs(59));
    assert_eq!(store.usage().live, 20_000);
    sweep(Timestamp::from_secs(60));
    assert_eq!((store.usage().live, store.usage().expired), (10_000, 10_000));
    let kept = take(&store, &rules, &["1"], 1, Scope::Descriptor, Timestamp::from_secs(61));
    assert_eq!(kept[0].before.0, 1);
    sweep(Timestamp::from_secs(1_000));
    assert_eq!(store.usage().live, 0);
}

/// A tier that changes its algorithm starts with a new counter; other tiers keep their counts.
#[test]
fn a_reload_keeps_the_counts_of_unchanged_tiers() {
    let (store, hasher) = (MemoryStore::new(1_000), KeyHasher::random());
    let now = Timestamp::from_secs(1);
    let remaining = |tiers: &[(u32, u64, Algorithm)]| {
        let tiers = tiers.iter().map(|(requests, seconds, algorithm)| {
            Tier::new(*requests, Period::from_secs(*seconds), *algorithm)
        });
        let rule =
            Rule::new(Limit::Tiers { tiers: tiers.collect(), over_limit_policy: OverLimitPolicy::Ignore });
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("d", vec![node])], hasher);
        take(&store, &rules, &["v"], 1, Scope::Descriptor, now)[0].remaining
    };
    let (fixed, sliding) = (Algorithm::FixedWindow, Algorithm::SlidingWindow);
    assert_eq!(remaining(&[(10, 60, fixed)]), 9);
    assert_eq!(remaining(&[(20, 60, fixed)]), 18, "a raised limit applies immediately");
    assert_eq!(remaining(&[(5, 60, fixed)]), 2, "a lowered limit keeps the count");
    assert_eq!(remaining(&[(10, 60, sliding)]), 9, "another algorithm starts with a new counter");
    assert_eq!(remaining(&[(100, 3_600, fixed), (5, 60, fixed)]), 1, "another tier changes nothing");
    assert_eq!(remaining(&[(100, 3_600, fixed)]), 98, "and it keeps its own count");
    let bucket = Algorithm::TokenBucket(Bucket { burst: 8, refill: Refill::Continuous, strict: false });
    assert_eq!(remaining(&[(1, 60, bucket)]), 7);
}

/// Runs `act` on the limit check of the value `v`.
fn with_check<T>(rules: &RuleSet, act: impl FnOnce(&LimitCheck<'_>) -> T) -> T {
    let request = Request { domain: "d", descriptors: [descriptor("v")].into_iter().collect(), hits: 1 };
    let matched = Matched::new(rules, &request);
    act(&matched.checks[0])
}

/// Returns one rule with these tiers, whose periods are in milliseconds.
fn tiers(tiers: &[(u32, u64, Algorithm)]) -> RuleSet {
    let tiers = tiers
        .iter()
        .map(|(requests, millis, algorithm)| Tier::new(*requests, Period::from_millis(*millis), *algorithm));
    let limit = Limit::Tiers { tiers: tiers.collect(), over_limit_policy: OverLimitPolicy::Ignore };
    let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("k", Values::Any) };
    RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random())
}

fn reserve(
    store: &MemoryStore,
    rules: &RuleSet,
    (least, want): (u64, u64),
    hold: u64,
    now: u64,
) -> Reservation {
    let request =
        ReservationRequest { least: Hits(least), want: Hits(want), hold: Period::from_millis(hold) };
    with_check(rules, |check| store.reserve_now(check, request, Timestamp::from_millis(now)))
}

fn release(store: &MemoryStore, rules: &RuleSet, reservation: Reservation, unused: u64, now: u64) {
    with_check(rules, |check| {
        store.release_now(check, reservation, Hits(unused), Timestamp::from_millis(now));
    });
}

/// Returns the hits that still fit at `now`.
fn room(store: &MemoryStore, rules: &RuleSet, now: u64) -> u32 {
    let request = Request {
        domain: "d",
        descriptors: [Descriptor { hits: Some(0), ..descriptor("v") }].into_iter().collect(),
        hits: 0,
    };
    let matched = Matched::new(rules, &request);
    store.decide(&matched.checks, Scope::Descriptor, Timestamp::from_millis(now))[0].remaining
}

#[test]
fn a_reservation_takes_as_many_hits_as_fit_from_all_tiers_or_none() {
    let store = MemoryStore::new(1_000);
    let rules = tiers(&[(10, 10_000, Algorithm::FixedWindow), (14, 60_000, Algorithm::FixedWindow)]);
    let first = reserve(&store, &rules, (1, 8), 60_000, 1_000);
    assert_eq!((first.hits, first.until), (Hits(8), Timestamp::from_millis(10_000)));
    assert!(!first.decision.over && first.decision.before == Hits(0) && first.decision.remaining == 2);

    let second = reserve(&store, &rules, (3, 8), 60_000, 1_000);
    assert_eq!(second.hits, Hits(0), "two hits fit, but at least three are requested");
    assert!(second.decision.over && second.decision.reset == Period::from_secs(9));

    let third = reserve(&store, &rules, (1, 8), 500, 11_000);
    assert_eq!((third.hits, third.until), (Hits(6), Timestamp::from_millis(11_500)));
    let fourth = reserve(&store, &rules, (1, 8), 500, 11_000);
    assert_eq!(fourth.hits, Hits(0));
    assert_eq!(fourth.decision.reset, Period::from_secs(49), "the second tier is used up");
}

#[test]
fn a_rejected_reservation_counts_nothing_and_creates_no_counter() {
    let (store, rules) = (MemoryStore::new(1_000), rules(3));
    assert_eq!(reserve(&store, &rules, (4, 9), 1_000, 1_000).hits, Hits(0));
    assert_eq!(store.usage().live, 0);
    assert_eq!(reserve(&store, &rules, (0, 0), 1_000, 1_000).hits, Hits(1), "at least one hit is reserved");
    assert_eq!(room(&store, &rules, 1_000), 2);
}

#[test]
fn a_release_gives_back_no_more_than_was_reserved() {
    let (store, rules) = (MemoryStore::new(1_000), rules(10));
    take(&store, &rules, &["v"], 3, Scope::Descriptor, Timestamp::from_secs(1));
    let reservation = reserve(&store, &rules, (1, 4), 1_000, 1_000);
    release(&store, &rules, reservation, u64::MAX, 1_500);
    assert_eq!(room(&store, &rules, 1_500), 7);
}

#[test]
fn a_window_that_has_ended_gets_nothing_back() {
    let store = MemoryStore::new(1_000);
    let rules = tiers(&[(10, 10_000, Algorithm::FixedWindow), (20, 60_000, Algorithm::FixedWindow)]);
    let reservation = reserve(&store, &rules, (1, 8), 60_000, 9_000);
    take(&store, &rules, &["v"], 5, Scope::Descriptor, Timestamp::from_secs(10));
    release(&store, &rules, reservation, 8, 10_000);
    assert_eq!(room(&store, &rules, 10_000), 5, "the five hits of the new window stay");
    assert_eq!(room(&store, &rules, 20_000), 15, "the tier of one minute got its eight hits back");
    assert_eq!(reserve(&store, &rules, (1, 20), 1_000, 20_000).hits, Hits(10));
    assert_eq!(reserve(&store, &rules, (1, 20), 1_000, 30_000).hits, Hits(5));
}

#[test]
fn reserved_hits_count_from_their_latest_use_in_a_sliding_window() {
    let store = MemoryStore::new(1_000);
    let rules = tiers(&[(10, 1_000, Algorithm::SlidingWindow)]);
    let reservation = reserve(&store, &rules, (1, 10), 500, 1_000);
    assert_eq!(reservation.until, Timestamp::from_millis(1_500));
    assert_eq!(room(&store, &rules, 2_499), 0);
    assert_eq!(room(&store, &rules, 2_500), 10);
}

#[derive(Clone, Debug)]
struct Step {
    value: u8,
    hits: u32,
    advance: u64,
}

fn step() -> impl Strategy<Value = Step> {
    (0..4_u8, 0..6_u32, 0..40_u64).prop_map(|(value, hits, advance)| Step { value, hits, advance })
}

proptest! {
    /// envoyproxy/ratelimit adds the hits to the count of the window, then compares the count with the limit.
    #[test]
    fn a_fixed_window_counts_as_envoyproxy_ratelimit_does(limit in 0..12_u32, steps in vec(step(), 1..80)) {
        let (store, rules) = (MemoryStore::new(1_000), rules(limit));
        let mut counts: HashMap<(u8, u64), u64> = HashMap::new();
        let mut seconds = 1_000;
        for Step { value, hits, advance } in steps {
            seconds += advance;
            let hits = hits.max(1);
            let count = counts.entry((value, seconds / 60)).or_default();
            *count += u64::from(hits);
            let now = Timestamp::from_secs(seconds);
            let decision = take(&store, &rules, &[&value.to_string()], hits, Scope::Descriptor, now)[0];
            prop_assert_eq!(decision.over, *count > u64::from(limit));
            prop_assert_eq!(u64::from(decision.remaining), u64::from(limit).saturating_sub(*count));
            prop_assert_eq!(decision.reset, Period::from_secs(60 - seconds % 60));
        }
    }

    /// Reserves, uses and releases random hits. No interval of a sliding window and no fixed window sees more uses than
    /// the limit, even if every hit is used at the last instant. A release frees exactly the unused hits. In a sliding
    /// window, it may free fewer if a later reservation ends earlier.
    #[test]
    fn reservations_never_exceed_the_limit(
        fixed in any::<bool>(),
        same_hold in any::<bool>(),
        limit in 1..20_u32,
        steps in vec((1..8_u64, 0..8_u64, 0..700_u64, 0..400_u64, 0..8_u64), 1..60),
    ) {
        let algorithm = if fixed { Algorithm::FixedWindow } else { Algorithm::SlidingWindow };
        let (store, rules) = (MemoryStore::new(1_000), tiers(&[(limit, 1_000, algorithm)]));
        let mut now = 1_000;
        let mut uses: Vec<(u64, u64)> = Vec::new();
        for (least, more, hold, advance, unused) in steps {
            now += advance;
            let hold = if same_hold { 300 } else { hold };
            let before = u64::from(room(&store, &rules, now));
            let reservation = reserve(&store, &rules, (least, least + more), hold, now);
            let hits = reservation.hits.0;
            let expected = if before < least { 0 } else { before.min(least + more) };
            prop_assert_eq!(hits, expected);
            prop_assert_eq!(reservation.decision.over, hits == 0);
            prop_assert_eq!(u64::from(room(&store, &rules, now)), before - hits);
            let unused = unused.min(hits);
            let until = reservation.until.as_nanos() / 1_000_000;
            release(&store, &rules, reservation, unused, now);
            let after = u64::from(room(&store, &rules, now));
            if fixed || same_hold {
                prop_assert_eq!(after, before - hits + unused);
            } else {
                prop_assert!(after >= before - hits && after <= before - hits + unused);
            }
            // the last instant before the end of the reservation
            uses.push((until.max(now + 1) - 1, hits - unused));
        }
        for (at, _) in &uses {
            let first = if fixed { at - at % 1_000 } else { *at };
            let seen = uses.iter().filter(|(use_at, _)| (first..first + 1_000).contains(use_at));
            prop_assert!(seen.map(|(_, hits)| hits).sum::<u64>() <= u64::from(limit));
        }
    }
}
