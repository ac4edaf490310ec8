//! Cases that differed once.

use weir_limit::{Algorithm, Bucket, Coordination, Period, Refill, Tier};

use crate::{
    case::{Ask, Case, Limit, Step},
    run::{Mode, run},
};

fn tier(requests: u32, millis: u64, algorithm: Algorithm) -> Tier {
    Tier::new(requests, Period::from_millis(millis), algorithm)
}

/// Requests for one counter under `tiers`, each after a wait in milliseconds.
fn case(tiers: Vec<Tier>, requests: &[(u64, u64, bool)]) -> Case {
    let limit = Limit { tiers, reference: false, meters: false };
    let steps = requests.iter().flat_map(|(wait, hits, gives_back)| {
        let ask = Ask { key: 0, value: 0, hits: *hits, gives_back: *gives_back, own: None };
        [Step::Wait(Period::from_millis(*wait)), Step::Request(0, vec![ask])]
    });
    Case {
        limits: vec![limit.clone(), limit.clone(), limit],
        together: false,
        local_cache: false,
        round_trip: 0,
        instances: 1,
        steps: steps.collect(),
    }
}

fn bucket(burst: u32) -> Algorithm {
    Algorithm::TokenBucket(Bucket { burst, refill: Refill::Continuous, strict: false })
}

#[test]
fn unused_hits_of_a_lease_leave_the_fixed_window_beside_a_bucket() {
    let tiers = vec![tier(1, 1_024, bucket(12)), tier(4, 10_000, Algorithm::FixedWindow)];
    let case = case(
        tiers,
        &[(286_033, 1_334, false), (0, 1, true), (2_238, 1, true), (63, 1, false), (3_889, 1, false)],
    );
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Lease)), Ok(()));
}

/// The first descriptor takes all of a bucket, and the instance pauses for longer than a token takes.
#[test]
fn a_rejection_of_one_request_lasts_until_its_pause_ends() {
    let ask = |hits| Ask { key: 0, value: 0, hits, gives_back: false, own: None };
    let case = Case {
        instances: 3,
        steps: vec![Step::Request(0, vec![ask(4), ask(1)])],
        ..case(vec![tier(12, 8_192, bucket(4))], &[])
    };
    for mode in [Coordination::Lease, Coordination::Auto] {
        assert_eq!(run(&case, Mode::Coordinated(mode)), Ok(()));
    }
}

/// The store is lost while it is told of hits that one counter gives back: its outcome is not known. What another one
/// counts meanwhile, in two groups of a sliding window, still has its own times.
#[test]
fn a_lost_command_of_one_counter_leaves_the_others_exact() {
    let ask =
        |key, hits, gives_back| Step::Request(0, vec![Ask { key, value: 0, hits, gives_back, own: None }]);
    let mut case = case(vec![tier(3, 3_600_000, Algorithm::SlidingWindow)], &[]);
    case.round_trip = 6;
    case.steps = vec![
        ask(1, 1, false),
        ask(0, 1, false),
        Step::Wait(Period::from_millis(299_980)),
        ask(1, 1, true),
        Step::Outage(true),
        ask(0, 1, false),
        Step::Wait(Period::from_millis(30)),
        ask(0, 1, false),
        Step::Outage(false),
        Step::Wait(Period::from_secs(3)),
        ask(0, 2, false),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Strict)), Ok(()));
}

#[test]
fn a_state_replaces_one_that_counts_nothing_any_more() {
    let case = case(
        vec![tier(1, 1_024, bucket(120))],
        &[(60, 2, false), (190_340, 1, false), (1, 1, false), (0, 7, false), (1, 1, false)],
    );
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Interval)), Ok(()));
}

#[test]
fn a_reload_that_adds_a_bucket_keeps_the_times_of_earlier_hits() {
    let window = tier(1, 300_000, Algorithm::SlidingWindow);
    let take = |value| Step::Request(0, vec![Ask { key: 0, value, hits: 1, gives_back: false, own: None }]);
    for together in [false, true] {
        let mut case = case(vec![window.clone()], &[]);
        let added = Limit {
            tiers: vec![tier(1, 1_024, bucket(4)), Tier { requests: 2, ..window.clone() }],
            reference: false,
            meters: false,
        };
        case.together = together;
        case.steps = vec![take(0), take(0), take(0), take(1), Step::Reload(0, added), take(0)];
        for coordination in [Coordination::Lease, Coordination::Auto] {
            assert_eq!(run(&case, Mode::Coordinated(coordination)), Ok(()), "{together}");
        }
    }
}

/// Requests for one counter under `limit`, with their own limits.
fn with_own_limits(limit: Limit, own: Vec<Option<Limit>>) -> Case {
    let steps = own
        .into_iter()
        .map(|own| Step::Request(0, vec![Ask { key: 0, value: 0, hits: 1, gives_back: false, own }]));
    Case { steps: steps.collect(), ..case(limit.tiers, &[]) }
}

#[test]
fn a_limit_of_a_request_counts_the_hits_of_a_used_lease_as_of_their_use() {
    let limit =
        Limit { tiers: vec![tier(3, 1_000, Algorithm::SlidingWindow)], reference: false, meters: false };
    let case = with_own_limits(limit.clone(), vec![None, Some(limit)]);
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Lease)), Ok(()));
}

/// One call gives back the unused hits of the lease that ends, another one requests the next lease.
#[test]
fn a_lease_that_ends_while_the_next_is_requested_counts_once() {
    let take = |key, value, hits| Ask { key, value, hits, gives_back: false, own: None };
    let mut case = case(vec![tier(1, 1_000, Algorithm::FixedWindow)], &[]);
    case.limits[1].tiers = vec![tier(8, 1_000, Algorithm::SlidingWindow)];
    case.round_trip = 2;
    case.steps = vec![
        Step::Request(0, vec![take(1, 1, 1)]),
        Step::Request(0, vec![take(1, 0, 1)]),
        Step::Request(0, vec![take(0, 0, 1)]),
        Step::Request(0, vec![take(0, 0, 0)]),
        Step::Wait(Period::from_millis(492)),
        Step::Request(0, vec![take(1, 1, 1), take(0, 0, 1)]),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Lease)), Ok(()));
}

#[test]
fn hits_given_back_after_a_reload_that_removes_a_tier_follow_those_before_it() {
    let both = vec![tier(1, 1_024, bucket(1)), tier(1, 1_000, Algorithm::FixedWindow)];
    let one = Limit { tiers: both[..1].to_vec(), reference: false, meters: false };
    let mut case = case(both, &[]);
    let ask = |gives_back| Ask { key: 0, value: 0, hits: 1, gives_back, own: None };
    case.steps = vec![
        Step::Wait(Period::from_millis(179)),
        Step::Request(0, vec![ask(false), ask(false)]),
        Step::Reload(0, one),
        Step::Request(0, vec![ask(false), ask(true)]),
        Step::Wait(Period::from_millis(1)),
        Step::Request(0, vec![ask(false)]),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Interval)), Ok(()));
}

#[test]
fn a_reload_that_adds_a_tier_which_rejects_leaves_no_lease_in_the_others() {
    let of_bucket = Tier { requests: 6, ..tier(6, 8_192, bucket(8)) };
    let mut case = case(vec![of_bucket.clone()], &[]);
    let take = |value, hits| Ask { key: 0, value, hits, gives_back: false, own: None };
    let added = Limit {
        tiers: vec![of_bucket, tier(0, 1_000, Algorithm::SlidingWindow)],
        reference: false,
        meters: false,
    };
    case.steps = vec![
        Step::Request(0, vec![take(1, 1)]),
        Step::Wait(Period::from_millis(500)),
        Step::Request(0, vec![take(0, 1)]),
        Step::Request(0, vec![take(0, 1)]),
        Step::Request(0, vec![take(1, 1)]),
        Step::Reload(0, added),
        Step::Request(0, vec![take(1, 6), take(0, 1)]),
    ];
    for coordination in [Coordination::Lease, Coordination::Auto] {
        assert_eq!(run(&case, Mode::Coordinated(coordination)), Ok(()));
    }
}

#[test]
fn hits_given_back_count_when_the_store_decides() {
    let slow = tier(1, 4_194_304, bucket(2));
    let take = |hits| Ask { key: 0, value: 0, hits, gives_back: false, own: None };
    let mut case = case(vec![slow.clone()], &[]);
    case.round_trip = 2;
    case.steps = vec![
        Step::Request(0, vec![take(1), take(1)]),
        Step::Request(0, vec![Ask { gives_back: true, ..take(1) }]),
        Step::Wait(Period::from_millis(1_998)),
        Step::Reload(0, Limit { tiers: vec![Tier { requests: 2, ..slow }], reference: false, meters: false }),
        Step::Request(0, vec![take(1)]),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Strict)), Ok(()));
}

#[test]
fn a_limit_of_a_request_leaves_the_times_of_leased_hits_in_other_tiers() {
    let hour = tier(1, 3_600_000, Algorithm::FixedWindow);
    let own = Limit { tiers: vec![Tier { requests: 3, ..hour.clone() }], reference: false, meters: false };
    let sliding = Tier { algorithm: Algorithm::SlidingWindow, ..hour.clone() };
    let take = |hits| Ask { key: 0, value: 0, hits, gives_back: false, own: None };
    let mut case = case(vec![hour, sliding], &[]);
    case.round_trip = 10;
    case.steps = vec![
        Step::Request(0, vec![take(1)]),
        Step::Wait(Period::from_millis(88_000)),
        Step::Request(0, vec![take(1)]),
        Step::Request(0, vec![Ask { gives_back: true, own: Some(own), ..take(1) }]),
        Step::Request(0, vec![take(3)]),
    ];
    for coordination in [Coordination::Lease, Coordination::Auto] {
        assert_eq!(run(&case, Mode::Coordinated(coordination)), Ok(()));
    }
}

/// The store grants in one window, and its reply arrives in the next one.
#[test]
fn hits_of_a_lease_count_in_the_window_of_their_decision() {
    let take = |key, hits| Ask { key, value: 1, hits, gives_back: false, own: None };
    let request = |key, hits| Step::Request(0, vec![take(key, hits)]);
    // the window ends while one of the requests waits
    for wait in 165..185 {
        let mut case = case(vec![tier(12, 2_000, Algorithm::FixedWindow)], &[]);
        case.limits[2].tiers = vec![tier(11, 1_000, Algorithm::FixedWindow)];
        case.round_trip = 2;
        case.steps = vec![
            request(2, 1),
            Step::Wait(Period::from_millis(wait)),
            request(0, 1),
            request(2, 2),
            request(0, 1),
            request(2, 1),
            request(2, 1),
            Step::Wait(Period::from_millis(10)),
            request(2, 1),
        ];
        for coordination in [Coordination::Lease, Coordination::Auto] {
            assert_eq!(run(&case, Mode::Coordinated(coordination)), Ok(()), "{wait} ms");
        }
    }
}

#[test]
fn hits_given_back_by_a_request_are_there_for_its_next_descriptor() {
    let ask = |hits, gives_back| Ask { key: 0, value: 0, hits, gives_back, own: None };
    let mut case = case(vec![tier(7, 2_000, Algorithm::SlidingWindow)], &[]);
    case.local_cache = true;
    case.steps = vec![
        Step::Request(0, vec![ask(2, false)]),
        Step::Request(0, vec![ask(5, false), ask(1, false)]),
        Step::Request(0, vec![ask(1, true), ask(1, false)]),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Strict)), Ok(()));
}

#[test]
fn a_strict_bucket_notices_a_try_before_hits_are_given_back_beside_the_local_cache() {
    let strict = Algorithm::TokenBucket(Bucket { burst: 3, refill: Refill::Continuous, strict: true });
    let tiers = vec![tier(4, 1_000, Algorithm::FixedWindow), tier(1, 65_536, strict)];
    let ask = |hits, gives_back| Ask { key: 0, value: 0, hits, gives_back, own: None };
    let mut case = case(tiers, &[]);
    case.local_cache = true;
    case.steps = vec![
        Step::Request(0, vec![ask(1, false), ask(1, false)]),
        Step::Request(0, vec![ask(1, false), ask(6, false)]),
        Step::Wait(Period::from_millis(1)),
        Step::Request(0, vec![ask(1, false)]),
        Step::Request(0, vec![ask(1, true), ask(1, false)]),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Strict)), Ok(()));
}

#[test]
fn hits_given_back_in_the_window_after_a_rejected_try_leave_the_times_of_others() {
    let bucket = Bucket { burst: 7, refill: Refill::Continuous, strict: true };
    let tiers = vec![
        tier(2, 1_000, Algorithm::FixedWindow),
        tier(2, 60_000, Algorithm::SlidingWindow),
        tier(106, 4_194_304, Algorithm::TokenBucket(bucket)),
    ];
    // the hits are given back at the start of a second
    let requests =
        [(6_653, 1, false), (325, 1, false), (1_122, 2_344, false), (79, 1, true), (303, 41, false)];
    for coordination in [Coordination::Lease, Coordination::Interval, Coordination::Auto] {
        assert_eq!(run(&case(tiers.clone(), &requests), Mode::Coordinated(coordination)), Ok(()));
    }
}

/// The store keeps the times of hits for other limits with the same tier.
#[test]
fn as_many_hits_taken_as_given_back_change_the_times_of_others() {
    let sliding = |requests, millis| tier(requests, millis, Algorithm::SlidingWindow);
    let tiers = vec![sliding(4, 10_000), tier(1, 1_024, bucket(4))];
    let take = |hits| Step::Request(0, vec![Ask { key: 0, value: 0, hits, gives_back: false, own: None }]);
    let give_back = || Step::Request(0, vec![Ask { key: 0, value: 0, hits: 1, gives_back: true, own: None }]);
    let mut case = case(tiers.clone(), &[]);
    case.together = true;
    let mut more = tiers;
    more.push(sliding(0, 60_000));
    let wait = || Step::Wait(Period::from_millis(1));
    let reload = Step::Reload(0, Limit { tiers: more, reference: false, meters: false });
    case.steps = vec![take(1), wait(), take(1), give_back(), reload, wait(), take(4)];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Interval)), Ok(()));
}

/// A lease of an ended window has not been returned yet when hits are given back in the next one, during an outage.
#[test]
fn what_is_given_back_beside_a_lease_of_an_ended_window_counts_nothing() {
    let mut case = case(vec![tier(11, 2_000, Algorithm::FixedWindow)], &[]);
    let hit = |gives_back| Step::Request(0, vec![Ask { key: 0, value: 1, hits: 1, gives_back, own: None }]);
    let wait = |millis| Step::Wait(Period::from_millis(millis));
    case.limits[1].tiers = vec![tier(11, 1_000, Algorithm::FixedWindow)];
    // decisions notice the outage
    let other = |value| Step::Request(0, vec![Ask { key: 1, value, hits: 1, gives_back: false, own: None }]);
    case.steps = vec![hit(false), Step::Outage(true), wait(1_876), other(0), other(1), other(0), hit(true)];
    case.steps.extend([Step::Outage(false), wait(188), wait(575), hit(false)]);
    for _ in 0..20 {
        assert_eq!(run(&case, Mode::Coordinated(Coordination::Lease)), Ok(()));
    }
}

/// What was counted before a reload is reported before what was given back after it, although the instants are the
/// same.
#[test]
fn what_is_given_back_after_a_reload_in_an_outage_follows_what_was_taken_before_it() {
    let minute = tier(1, 60_000, Algorithm::FixedWindow);
    let both =
        Limit { tiers: vec![tier(56, 1_024, bucket(1)), minute.clone()], reference: false, meters: false };
    let ask =
        |hits, gives_back| Step::Request(0, vec![Ask { key: 0, value: 0, hits, gives_back, own: None }]);
    let mut case = case(vec![minute], &[]);
    case.steps = vec![Step::Outage(true), ask(1, false), Step::Reload(0, both), ask(6, true)];
    case.steps.extend([Step::Outage(false), Step::Wait(Period::from_millis(501)), ask(1, false)]);
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Strict)), Ok(()));
}

/// The threads that read and write have the time of the decisions, however slow the disk is.
#[test]
fn a_slow_disk_forgets_no_hits_that_count() {
    let mut case = case(vec![tier(1, 1, bucket(1))], &[]);
    // more counters than are in memory, and more decisions than there are between two restarts
    let take = |i: usize| {
        Step::Request(0, vec![Ask { key: i % 3, value: i % 2, hits: 1, gives_back: false, own: None }])
    };
    case.steps = (0..60).map(take).collect();
    assert_eq!(run(&case, Mode::Disk), Ok(()));
}

/// The check without hits that reads the count is followed by one that asks the store about another limit.
#[test]
fn a_question_about_another_limit_does_not_stand_for_a_read() {
    let ask = |own| Ask { key: 0, value: 0, hits: 1, gives_back: false, own };
    let mut case = case(vec![tier(33, 60_000, Algorithm::SlidingWindow)], &[]);
    let none = Limit { tiers: vec![tier(0, 1_000, Algorithm::FixedWindow)], reference: false, meters: false };
    case.instances = 3;
    case.steps = vec![
        Step::Request(0, vec![ask(None), ask(None)]),
        Step::Request(1, vec![ask(None), ask(Some(none))]),
    ];
    assert_eq!(run(&case, Mode::Mixed), Ok(()));
}

/// What is known of a tier of another limit says nothing of those that it does not have.
#[test]
fn a_reply_about_another_limit_does_not_stand_for_a_read() {
    let fixed = |requests, millis| tier(requests, millis, Algorithm::FixedWindow);
    let own = Limit { tiers: vec![fixed(103, 3_600_000)], reference: false, meters: false };
    let ask = |hits, gives_back, own| Ask { key: 0, value: 0, hits, gives_back, own };
    let mut case = case(vec![fixed(17, 1_000), fixed(3, 300_000), fixed(3, 3_600_000)], &[]);
    case.instances = 3;
    case.steps = vec![
        Step::Request(0, vec![ask(3, false, None)]),
        Step::Request(2, vec![ask(2, true, Some(own)), ask(1, true, None)]),
    ];
    assert_eq!(run(&case, Mode::Mixed), Ok(()));
}

/// A counter that began with the limit of a request reads all tiers beside its first lease. That reply waits for the
/// lease.
#[test]
fn a_read_beside_a_hold_leaves_the_exact_times_of_leased_hits() {
    let sliding = vec![tier(6, 2_000, Algorithm::SlidingWindow)];
    let own = |requests| {
        Some(Limit {
            tiers: vec![tier(requests, 1_000, Algorithm::FixedWindow)],
            reference: false,
            meters: false,
        })
    };
    let ask = |hits, gives_back, own| Ask { key: 0, value: 0, hits, gives_back, own };
    let mut case = case(sliding, &[]);
    case.round_trip = 10;
    case.steps = vec![
        Step::Request(0, vec![ask(1, false, own(120))]),
        Step::Request(0, vec![Ask { value: 1, ..ask(1, false, None) }]),
        Step::Request(0, vec![ask(7, false, None), ask(1, false, None)]),
        Step::Request(0, vec![ask(1, false, None)]),
        Step::Wait(Period::from_millis(40)),
        Step::Request(0, vec![ask(1, false, own(0)), ask(1, true, None)]),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Auto)), Ok(()));
}

/// The try leaves with the report about the other limit, so that the store has the exact state before it decides.
#[test]
fn a_report_about_another_limit_leaves_the_exact_times_of_leased_hits() {
    let ask = |hits, gives_back, own| Ask { key: 0, value: 0, hits, gives_back, own };
    let mut case = case(vec![tier(1_486, 3_600_000, Algorithm::SlidingWindow)], &[]);
    let none = Limit { tiers: vec![tier(0, 1_000, Algorithm::FixedWindow)], reference: false, meters: false };
    case.steps = vec![
        Step::Request(0, vec![ask(1, true, Some(none))]),
        Step::Request(0, vec![ask(6, false, None)]),
        Step::Request(0, vec![ask(1, true, None)]),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Lease)), Ok(()));
}

/// The rule's bucket is full again, so that nothing of it counts while the other limit is in use.
#[test]
fn a_request_with_another_limit_leaves_what_is_known_of_the_rules_tiers() {
    let ask = |value, hits, own| Ask { key: 0, value, hits, gives_back: false, own };
    let mut case = case(vec![tier(46, 8_192, bucket(12))], &[]);
    let one = Limit { tiers: vec![tier(1, 1_000, Algorithm::FixedWindow)], reference: false, meters: false };
    case.together = true;
    case.local_cache = true;
    let wait = |millis| Step::Wait(Period::from_millis(millis));
    case.steps = vec![
        wait(718),
        Step::Request(0, vec![ask(0, 1, None)]),
        Step::Request(0, vec![ask(1, 1, None)]),
        wait(461),
        Step::Request(0, vec![ask(1, 1, None), ask(0, 1, Some(one))]),
        wait(1),
        Step::Request(0, vec![ask(0, 2, None)]),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Lease)), Ok(()));
}

/// The answer names the tier that has the least left, of those of the rule.
#[test]
fn a_lease_after_an_outage_with_a_limit_of_a_request_reports_the_tier_with_the_least_left() {
    let fixed = |requests, millis| tier(requests, millis, Algorithm::FixedWindow);
    let own = |requests, millis| {
        Some(Limit { tiers: vec![fixed(requests, millis)], reference: false, meters: false })
    };
    let ask =
        |key, hits, gives_back, own| Step::Request(0, vec![Ask { key, value: 0, hits, gives_back, own }]);
    let mut case = case(vec![fixed(2, 1_000), fixed(2, 60_000)], &[]);
    case.steps = vec![
        Step::Outage(true),
        ask(0, 1, false, own(1, 1_000)),
        ask(2, 1, false, None),
        Step::Outage(false),
        ask(2, 2, true, None),
        ask(2, 1, false, None),
        Step::Wait(Period::from_millis(496)),
        ask(2, 1, false, None),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Lease)), Ok(()));
}

/// The first lease ends unused, and flows back into the bucket in the store while the second one does: the instance
/// remembers for as long which of the hits were used.
#[test]
fn a_counter_stays_while_the_store_counts_unused_hits_of_several_leases() {
    for (requests, burst, first, last) in [(4, 776, 1, 201_901), (6, 2_000, 6, 346_000)] {
        let tiers = vec![tier(requests, 8_192, bucket(burst))];
        let case = case(tiers, &[(0, first, false), (8_192, 1, false), (last, 1, false)]);
        // the sweep that would remove the counter comes at random places
        for _ in 0..20 {
            assert_eq!(run(&case, Mode::Coordinated(Coordination::Lease)), Ok(()));
        }
    }
}

/// The unused hits of the first lease, which the store still counts, are this instance's own.
#[test]
fn hits_given_back_beside_others_leave_those_of_an_unused_lease_to_a_lone_instance() {
    let ask = |hits, gives_back| Ask { key: 0, value: 0, hits, gives_back, own: None };
    let mut case = case(vec![tier(4, 1_024, bucket(56))], &[(0, 7, false), (2_000, 0, false)]);
    case.steps.push(Step::Request(0, vec![ask(1, true), ask(51, false)]));
    for mode in [Coordination::Lease, Coordination::Auto] {
        assert_eq!(run(&case, Mode::Coordinated(mode)), Ok(()));
    }
}

/// As above: the cost fits.
#[test]
fn a_cost_beside_an_unused_lease_of_a_lone_instance_is_within_the_limit() {
    let mut case =
        case(vec![tier(1, 1_024, bucket(704))], &[(0, 1, false), (512, 616, false), (0, 616, false)]);
    case.limits.iter_mut().for_each(|limit| limit.meters = true);
    for mode in [Coordination::Lease, Coordination::Auto] {
        assert_eq!(run(&case, Mode::Coordinated(mode)), Ok(()));
    }
}

/// A start without hits is decided by whether one is left, which it does not take.
#[test]
fn a_start_without_hits_beside_a_rejected_one_is_decided_by_what_is_left() {
    for requests in [0, 1] {
        let ask = |key, hits| Ask { key, value: 0, hits, gives_back: false, own: None };
        let mut case = case(vec![tier(requests, 1_000, Algorithm::SlidingWindow)], &[]);
        case.limits[0].meters = true;
        case.limits[1].tiers[0].requests = 0;
        case.together = true;
        case.steps = vec![Step::Request(0, vec![ask(0, 0), ask(1, 6)])];
        let modes = [Coordination::Split, Coordination::Strict, Coordination::Lease, Coordination::Interval];
        for mode in modes.map(Mode::Coordinated).into_iter().chain([Mode::Memory, Mode::Disk]) {
            assert_eq!(run(&case, mode), Ok(()), "{mode:?} of {requests}");
        }
    }
}

/// It is abandoned a moment before its end, when it has to be returned.
#[test]
fn a_lease_that_is_abandoned_at_its_end_goes_back_to_the_bucket() {
    let ask = |hits| vec![Ask { key: 0, value: 0, hits, gives_back: false, own: None }];
    for first in 20..40 {
        let mut case = case(vec![tier(1, 8_192, bucket(58))], &[]);
        case.instances = 3;
        case.steps = vec![Step::Request(0, ask(first)), Step::Request(0, ask(1)), Step::Request(1, ask(1))];
        for mode in [Coordination::Lease, Coordination::Auto] {
            assert_eq!(run(&case, Mode::Coordinated(mode)), Ok(()), "{first}");
        }
    }
}

/// The counter of the new tiers is removed when nothing is used any more, and that of the old ones stays.
#[test]
fn a_counter_that_begins_again_knows_what_the_last_one_gave_back() {
    let ask =
        |hits, gives_back| Step::Request(0, vec![Ask { key: 0, value: 0, hits, gives_back, own: None }]);
    let mut case = case(vec![tier(2, 21_600_000, Algorithm::SlidingWindow)], &[]);
    case.instances = 3;
    let mut limit = case.limits[0].clone();
    limit.tiers.insert(0, tier(1, 8_192, bucket(6)));
    case.steps = vec![ask(1, false), Step::Reload(0, limit), ask(1, true), ask(1_317, false)];
    for mode in [Coordination::Lease, Coordination::Interval] {
        // the sweep that removes the counter comes at random places
        for _ in 0..30 {
            assert_eq!(run(&case, Mode::Coordinated(mode)), Ok(()), "{mode:?}");
        }
    }
}

/// In one command: the bucket is within its limit only after the second one.
#[test]
fn a_cost_above_the_limit_stays_so_beside_hits_that_are_given_back() {
    let ask = |hits, gives_back| Ask { key: 0, value: 0, hits, gives_back, own: None };
    let mut case = case(vec![tier(1, 1_024, bucket(1))], &[]);
    case.limits[0].meters = true;
    for asks in [[ask(6, false), ask(1, true)], [ask(1, true), ask(6, false)]] {
        case.steps = vec![Step::Request(0, asks.to_vec())];
        for mode in [Coordination::Strict, Coordination::Lease, Coordination::Interval] {
            assert_eq!(run(&case, Mode::Coordinated(mode)), Ok(()), "{mode:?}");
        }
    }
}

/// The store has forgotten by the faster refill of before that the bucket was full again.
#[test]
fn what_another_instance_gave_back_before_a_reload_stays_given_back() {
    let ask = |instance, gives_back| {
        Step::Request(instance, vec![Ask { key: 0, value: 1, hits: 1, gives_back, own: None }])
    };
    let wait = |millis| Step::Wait(Period::from_millis(millis));
    let minutes = tier(1, 300_000, Algorithm::FixedWindow);
    let mut case = case(vec![tier(25, 4_194_304, bucket(1)), minutes.clone()], &[]);
    case.instances = 3;
    let mut slower = case.limits[0].clone();
    slower.tiers = vec![tier(1, 4_194_304, bucket(1)), minutes];
    case.steps = vec![
        ask(0, false),
        ask(1, true),
        wait(112_178),
        Step::Reload(0, slower),
        wait(55_941),
        ask(0, false),
    ];
    assert_eq!(run(&case, Mode::Coordinated(Coordination::Strict)), Ok(()));
}
