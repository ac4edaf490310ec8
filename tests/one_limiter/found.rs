//! Cases that differed once.

use weir::limit::{Algorithm, Bucket, Coordination, Period, Refill, Tier};

use crate::{
    case::{Ask, Case, Limit, Step},
    run::{Mode, run},
};

fn tier(requests: u32, millis: u64, algorithm: Algorithm) -> Tier {
    Tier { requests, period: Period::from_millis(millis), algorithm }
}

/// Requests for one counter under `tiers`, each after a wait in milliseconds.
fn case(tiers: Vec<Tier>, requests: &[(u64, u64, bool)]) -> Case {
    let limit = Limit { tiers, reference: false };
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
        };
        case.together = together;
        case.steps = vec![take(0), take(0), take(0), take(1), Step::Reload(0, added), take(0)];
        for coordination in [Coordination::Lease, Coordination::Auto] {
            assert_eq!(run(&case, Mode::Coordinated(coordination)), Ok(()), "{together}");
        }
    }
}
