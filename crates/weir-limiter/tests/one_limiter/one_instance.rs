//! With one instance and requests one after the other, every mode answers as the model does.

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use weir_limit::{Algorithm, Coordination, Period, Tier};

use crate::{
    case::{Ask, Case, Feature, Limit, Step},
    generate::cases,
    run::{Mode, run},
};

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

/// Compares random cases of `instances`.
pub(crate) fn compare(mode: Mode, instances: usize) {
    let cases_to_run = variable("ONE_LIMITER_CASES").and_then(|n| n.parse().ok()).unwrap_or(96);
    let config = Config {
        cases: cases_to_run,
        failure_persistence: None,
        max_shrink_time: 20_000,
        ..Config::default()
    };
    let without = without();
    let mut runner = TestRunner::new(config);
    let result = runner.run(&cases(instances, 60), |mut case| {
        for feature in &without {
            case.remove(*feature);
        }
        if instances > 1 && mode != Mode::Coordinated(Coordination::Strict) {
            case.shrink_limits();
        }
        if mode.is_coordinated() {
            case.name_counters_once();
        }
        if mode.is_coordinated() {
            // counters that share a tier are as several instances to each other
            case.remove(Feature::RichOwnLimits);
        }
        if instances == 1 && mode.is_coordinated() {
            case.remove(Feature::OtherTiers);
        }
        case.tidy();
        run(&case, mode).map_err(|differs| TestCaseError::fail(format!("{mode:?}, {differs}\nin{case:?}")))
    });
    if let Err(TestError::Fail(reason, case)) = result {
        // the order of tasks and the places of counters are random
        let again = (0..200).filter(|_| run(&case, mode).is_err()).count();
        panic!("{reason}\nrun 200 times more, it failed {again} times");
    }
}

#[test]
fn memory() {
    compare(Mode::Memory, 1);
}

#[test]
fn disk() {
    compare(Mode::Disk, 1);
}

#[test]
fn strict() {
    compare(Mode::Coordinated(Coordination::Strict), 1);
}

#[test]
fn interval() {
    compare(Mode::Coordinated(Coordination::Interval), 1);
}

#[test]
fn lease() {
    compare(Mode::Coordinated(Coordination::Lease), 1);
}

#[test]
fn auto() {
    compare(Mode::Coordinated(Coordination::Auto), 1);
}

#[test]
fn split() {
    compare(Mode::Coordinated(Coordination::Split), 1);
}

#[test]
fn mixed() {
    compare(Mode::Mixed, 1);
}

/// A tier counts the same hits whichever other tiers are beside it: when a reload adds some, and when a request brings
/// its own.
#[test]
fn tiers_stay_used_up_when_others_join_them() {
    let tier = |requests, millis, algorithm| Tier::new(requests, Period::from_millis(millis), algorithm);
    let limit = |tiers: &[Tier]| Limit { tiers: tiers.to_vec(), reference: false, meters: false };
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
    let coordinated = [Coordination::Strict, Coordination::Interval, Coordination::Lease, Coordination::Auto];
    for mode in coordinated.map(Mode::Coordinated).into_iter().chain([Mode::Memory, Mode::Disk]) {
        let instances = if mode.is_coordinated() { 2 } else { 1 };
        let case = Case { instances, ..case.clone() };
        run(&case, mode).unwrap_or_else(|differs| panic!("{mode:?}, {differs}"));
    }
}
