//! Many keys at once: churn, a full table, reloads, several nodes, outages of minutes, hits that are given back.

mod fleet;
mod nodes;

use std::time::Duration;

use proptest::{prelude::*, sample::select};
use weir_limit::{Coordination, OnStoreFailure};

use self::fleet::{Case, Report};

fn cases(modes: &'static [Coordination]) -> impl Strategy<Value = Case> {
    let faults = (any::<bool>(), any::<bool>(), any::<bool>());
    let sizes = (1..5_usize, 1..4_usize, select(vec![24_usize, 10_000]), select(vec![0_u64, 2, 12, 60]));
    (select(modes), any::<bool>(), sizes, faults, any::<u64>()).prop_map(
        |(mode, denies, (instances, nodes, max_counters, round_trip), (reload, node_fails, outage), seed)| {
            Case {
                mode,
                failure: if denies { OnStoreFailure::Deny } else { OnStoreFailure::Local },
                instances,
                nodes,
                max_counters,
                round_trip: Duration::from_millis(round_trip),
                reload,
                node_fails,
                outage,
                seed,
            }
        },
    )
}

/// The fewest cases of each property.
const CASES: u32 = 12;

const ALL: &[Coordination] =
    &[Coordination::Interval, Coordination::Lease, Coordination::Strict, Coordination::Auto];

/// Returns the configuration of each property: few cases, since each is long, or as many as `PROPTEST_CASES` says if
/// those are more.
#[expect(clippy::disallowed_methods, reason = "it sets the test, not weir")]
fn config() -> ProptestConfig {
    let more: Option<u32> = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = more.unwrap_or_default().max(CASES);
    ProptestConfig { cases, failure_persistence: None, max_shrink_time: 20_000, ..ProptestConfig::default() }
}

/// Checks that every hit is in the store, or lost by a rule that has a metric.
fn check_accounts(case: &Case, report: &Report) -> Result<(), TestCaseError> {
    prop_assert!(
        report.missing <= report.unknown + report.unreported,
        "{} hits are not counted, but {} are unknown and {} were not reported: {report:?}\n{case:?}",
        report.missing,
        report.unknown,
        report.unreported
    );
    prop_assert!(
        report.excess + report.excess_flowing <= report.unknown + report.stranded,
        "{} hits are counted too much, but {} are unknown and {} were stranded: {report:?}\n{case:?}",
        report.excess + report.excess_flowing,
        report.unknown,
        report.stranded
    );
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_hit_is_accounted_for_and_memory_is_bounded(case in cases(ALL)) {
        let report = case.run();
        if report.evicted == 0 {
            check_accounts(&case, &report)?;
        }
        prop_assert!(report.most_counters <= case.max_counters + case.max_counters / 4 + 64, "{report:?}");
        // while one client keeps trying, whatever is due has left; the counters of ended windows are swept
        // a decision of the store that came too late may have counted
        if !case.has_faults() {
            prop_assert!(report.unsettled <= report.unknown, "{} hits are not reported or returned: {report:?}", report.unsettled);
        }
        prop_assert!(report.short_lived == 0, "{} counters of ended windows: {report:?}", report.short_lived);
    }

    #[test]
    fn an_exact_mode_never_exceeds_a_limit(case in cases(&[Coordination::Lease, Coordination::Strict])) {
        let case = Case { failure: OnStoreFailure::Deny, ..case };
        let report = case.run();
        prop_assert!(report.above == 0, "{} above: {report:?}", report.above);
    }

    #[test]
    fn a_lone_instance_rejects_nothing_that_fits(case in cases(&[Coordination::Interval, Coordination::Strict])) {
        check_alone(&case)?;
    }

    #[test]
    fn a_lone_instance_with_leases_rejects_nothing_that_fits(case in cases(&[Coordination::Lease, Coordination::Auto])) {
        check_alone(&case)?;
    }

    #[test]
    fn every_hit_is_accounted_for_in_a_full_table(case in cases(ALL)) {
        let case = Case { max_counters: 24, ..case };
        check_accounts(&case, &case.run())?;
    }
}

/// Checks one instance with an undisturbed store.
fn check_alone(case: &Case) -> Result<(), TestCaseError> {
    let case = Case {
        instances: 1,
        nodes: 1,
        max_counters: 10_000,
        node_fails: false,
        outage: false,
        failure: OnStoreFailure::Local,
        // the budget is 15 ms
        round_trip: case.round_trip.min(Duration::from_millis(12)),
        ..case.clone()
    };
    let report = case.run();
    prop_assert!(report.wrong_rejections == 0, "{}: {report:?}\n{case:?}", report.wrong_rejections);
    prop_assert!(report.above == 0, "{}: {report:?}\n{case:?}", report.above);
    prop_assert!(report.missing == 0 && report.excess == 0, "{report:?}\n{case:?}");
    Ok(())
}
