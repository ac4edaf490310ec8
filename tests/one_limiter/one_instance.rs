//! With one instance and requests one after the other, every mode answers as the model does.

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use weir::limit::{Algorithm, Coordination, Period, Tier};

use crate::{
    case::{Ask, Case, Feature, Limit, Step},
    generate::cases,
    run::{Mode, run},
};

/// What a mode is known to do differently. A case is compared without it.
fn known(mode: Mode) -> &'static [Feature] {
    match mode {
        Mode::Memory | Mode::Coordinated(Coordination::Strict) => &[],
        // each of the counters of two limits that share some of their tiers reports its own hits, so their order is lost if requests
        // alternate between them; only a limit that comes with a request can do that
        Mode::Coordinated(Coordination::Interval) => &[Feature::RichOwnLimits],
        // and a hit counts at the instant at which the store granted it or at which it was used, up to a round trip later; after a reload
        // with other tiers, hits of sliding windows may count as of the end of their lease
        Mode::Coordinated(Coordination::Lease) => {
            &[Feature::RichOwnLimits, Feature::OtherTiers, Feature::RoundTrip]
        }
        // and a reload that moves a counter from `interval` to `lease` may do so while a report is in flight: the first lease may then
        // be granted before the store counts the reported hits
        Mode::Coordinated(_) => &[Feature::RichOwnLimits, Feature::Reload, Feature::RoundTrip],
    }
}

/// The features that `ONE_LIMITER_WITHOUT` names, to look at a mode without them.
fn without() -> Vec<Feature> {
    let names = variable("ONE_LIMITER_WITHOUT").unwrap_or_default();
    Feature::ALL
        .into_iter()
        .filter(|feature| names.split(',').any(|name| name == format!("{feature:?}")))
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "it sets the test, not weir")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Compares random cases, without what `mode` is `known` to do differently.
fn compare(mode: Mode, known: &[Feature]) {
    let cases_to_run = variable("ONE_LIMITER_CASES").and_then(|n| n.parse().ok()).unwrap_or(48);
    let config = Config {
        cases: cases_to_run,
        failure_persistence: None,
        max_shrink_time: 20_000,
        ..Config::default()
    };
    let without = without();
    let mut runner = TestRunner::new(config);
    let result = runner.run(&cases(1, 60), |mut case| {
        known.iter().chain(&without).for_each(|feature| case.remove(*feature));
        if mode == Mode::Coordinated(Coordination::Strict) && case.round_trip > 0 {
            // nobody waits until the store counts them, so they count half a round trip later than in the model
            case.remove(Feature::GiveBack);
        }
        if mode == Mode::Coordinated(Coordination::Strict) && case.together {
            // a bucket that is only looked at, because another descriptor rejects the request, does not restart
            case.remove(Feature::StrictBuckets);
        }
        case.tidy();
        run(&case, mode).map_err(|differs| TestCaseError::fail(format!("{mode:?}, {differs}\nin{case:?}")))
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn memory() {
    compare(Mode::Memory, known(Mode::Memory));
}

#[test]
fn strict() {
    let mode = Mode::Coordinated(Coordination::Strict);
    compare(mode, known(mode));
}

#[test]
fn interval() {
    let mode = Mode::Coordinated(Coordination::Interval);
    compare(mode, known(mode));
}

/// A tier counts the same hits whichever other tiers are beside it: when a reload adds some, and when a request brings its own.
#[test]
fn tiers_stay_used_up_when_others_join_them() {
    let tier =
        |requests, millis, algorithm| Tier { requests, period: Period::from_millis(millis), algorithm };
    let limit = |tiers: &[Tier]| Limit { tiers: tiers.to_vec(), reference: false };
    let (minute, hour) =
        (tier(3, 60_000, Algorithm::FixedWindow), tier(5, 3_600_000, Algorithm::SlidingWindow));
    let day = tier(9, 86_400_000, Algorithm::FixedWindow);
    let take = |own: Option<Limit>| {
        let ask = Ask { key: 0, value: 0, hits: 1, gives_back: false, own };
        Step::Request(0, vec![ask])
    };
    let (two, three) = (limit(&[minute.clone(), hour.clone()]), limit(&[minute, hour.clone(), day]));
    let wait = || Step::Wait(Period::from_millis(7));
    let steps = [
        vec![
            take(None),
            take(Some(three.clone())),
            take(None),
            take(Some(three.clone())),
            take(None),
            wait(),
        ],
        vec![Step::Reload(0, three), take(None), take(Some(two.clone())), Step::Wait(Period::from_secs(61))],
        vec![take(None), take(Some(limit(&[hour]))), take(None), wait(), take(Some(two.clone())), take(None)],
    ];
    let case = Case {
        limits: vec![two.clone(), two.clone(), two],
        together: false,
        local_cache: false,
        round_trip: 2,
        instances: 1,
        steps: steps.concat(),
    };
    for mode in [Mode::Memory, Mode::Coordinated(Coordination::Interval)] {
        run(&case, mode).unwrap_or_else(|differs| panic!("{mode:?}, {differs}"));
    }
}

#[test]
fn lease() {
    let mode = Mode::Coordinated(Coordination::Lease);
    compare(mode, known(mode));
}

#[test]
fn auto() {
    let mode = Mode::Coordinated(Coordination::Auto);
    compare(mode, known(mode));
}

#[test]
#[ignore = "limits of requests that share some of their tiers with a rule differ in rare cases"]
fn interval_with_everything() {
    compare(Mode::Coordinated(Coordination::Interval), &[]);
}

#[test]
#[ignore = "limits of requests that share some of their tiers with a rule differ, times within a round trip, and other tiers"]
fn lease_with_everything() {
    compare(Mode::Coordinated(Coordination::Lease), &[]);
}

#[test]
#[ignore = "limits of requests that share some of their tiers with a rule differ, times within a round trip, and other tiers"]
fn auto_with_everything() {
    compare(Mode::Coordinated(Coordination::Auto), &[]);
}
