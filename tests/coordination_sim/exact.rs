//! `lease` and `strict` with `on_store_failure: deny` never admit more than the limit, with any faults, except for hits
//! that the store lost in a failover.

use proptest::{prelude::*, sample::select};
use weir::simulate::SimulationMetrics;
use weir_limit::{Algorithm, Bucket, Coordination, OnStoreFailure, Period, Refill, Tier};

use crate::fleet::{BUDGET, Case, CaseResult, events, networks};

/// The time during which requests arrive, in milliseconds.
const LENGTH: u64 = 3_000;

fn cases(failovers: bool) -> impl Strategy<Value = Case> {
    let algorithm = prop_oneof![
        2 => Just(Algorithm::FixedWindow),
        1 => Just(Algorithm::SlidingWindow),
        1 => (1..40_u32).prop_map(|burst| {
            Algorithm::TokenBucket(Bucket { burst, refill: Refill::Continuous, strict: false })
        }),
    ];
    let tier = (1..80_u32, select(vec![1_u64, 2]), algorithm).prop_map(|(requests, seconds, algorithm)| {
        Tier::new(requests, Period::from_secs(seconds), algorithm)
    });
    let mode = select(vec![Coordination::Lease, Coordination::Strict]);
    (1..6_usize, mode, tier, 0.02..0.4, networks(), 0..700_u32, any::<u64>(), events(LENGTH, failovers))
        .prop_map(|(instances, mode, tier, rate, network, clock_skew, seed, events)| Case {
            instances,
            mode,
            tier,
            failure: OnStoreFailure::Deny,
            rate,
            length: LENGTH,
            network,
            clock_skew,
            seed,
            events,
        })
}

/// Returns the largest number of hits above the limit. A bucket's tokens may be used or given back for a twentieth of
/// the period after they were granted, plus the time of the network; the bucket's inflow of that time comes on top.
fn excess(case: &Case, result: &CaseResult) -> f64 {
    let overshoot = SimulationMetrics::of(&case.scenario(), &result.outcome).overshoot;
    match case.tier.algorithm {
        Algorithm::TokenBucket(bucket) => {
            let late = case.network.round_trip + case.network.jitter + case.network.spike;
            let late = late.as_secs_f64() / (case.tier.period.as_nanos() as f64 / 1e9);
            overshoot * f64::from(bucket.burst) - f64::from(case.tier.requests) * (0.05 + late)
        }
        _ => overshoot * f64::from(case.tier.requests),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_limit_is_never_exceeded(case in cases(false)) {
        let result = case.run();
        let excess = excess(&case, &result);
        prop_assert!(excess < 1e-6, "{excess} hits too many");
    }

    #[test]
    fn a_failover_admits_no_more_than_it_lost(case in cases(true)) {
        let result = case.run();
        let excess = excess(&case, &result);
        prop_assert!(excess < result.lost as f64 + 1e-6, "{excess} hits too many, {} lost", result.lost);
    }

    #[test]
    fn every_decision_is_made_within_its_budget(case in cases(true), local in any::<bool>()) {
        let failure = if local { OnStoreFailure::Local } else { OnStoreFailure::Deny };
        let result = Case { failure, ..case }.run();
        for decision in &result.outcome.decisions {
            prop_assert!(decision.decided.since(decision.arrived) <= BUDGET, "{decision:?}");
            prop_assert!(decision.admitted.is_some());
        }
    }
}
