//! `lease` and `strict` never admit more than the limit, whatever happens, as long as nobody decides without the store;
//! but for what a failover made the store forget.

use proptest::{prelude::*, sample::select};
use weir::{
    limit::{Algorithm, Bucket, Coordination, OnStoreFailure, Period, Refill, Tier},
    simulate::SimulationMetrics,
};

use crate::fleet::{BUDGET, Story, Told, events, networks};

/// Milliseconds that requests come for.
const LENGTH: u64 = 3_000;

fn stories(failovers: bool) -> impl Strategy<Value = Story> {
    let algorithm = prop_oneof![
        2 => Just(Algorithm::FixedWindow),
        1 => Just(Algorithm::SlidingWindow),
        1 => (1..40_u32).prop_map(|burst| {
            Algorithm::TokenBucket(Bucket { burst, refill: Refill::Continuous, strict: false })
        }),
    ];
    let tier = (1..80_u32, select(vec![1_u64, 2]), algorithm).prop_map(|(requests, seconds, algorithm)| {
        Tier { requests, period: Period::from_secs(seconds), algorithm }
    });
    let mode = select(vec![Coordination::Lease, Coordination::Strict]);
    (1..6_usize, mode, tier, 0.02..0.4, networks(), 0..700_u32, any::<u64>(), events(LENGTH, failovers))
        .prop_map(|(instances, mode, tier, rate, network, clock_skew, seed, events)| Story {
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

/// How many hits above the limit were admitted where it was worst. A bucket's tokens may be used, or be given back, for a
/// twentieth of the period after they were granted, and be on their way back for as long as the network takes: what flows
/// in meanwhile comes on top.
fn excess(story: &Story, told: &Told) -> f64 {
    let overshoot = SimulationMetrics::of(&story.scenario(), &told.outcome).overshoot;
    match story.tier.algorithm {
        Algorithm::TokenBucket(bucket) => {
            let late = story.network.round_trip + story.network.jitter + story.network.spike;
            let late = late.as_secs_f64() / (story.tier.period.as_nanos() as f64 / 1e9);
            overshoot * f64::from(bucket.burst) - f64::from(story.tier.requests) * (0.05 + late)
        }
        _ => overshoot * f64::from(story.tier.requests),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_limit_is_kept(story in stories(false)) {
        let told = story.run();
        let excess = excess(&story, &told);
        prop_assert!(excess < 1e-6, "{excess} hits too many");
    }

    #[test]
    fn a_failover_lets_no_more_pass_than_it_lost(story in stories(true)) {
        let told = story.run();
        let excess = excess(&story, &told);
        prop_assert!(excess < told.lost as f64 + 1e-6, "{excess} hits too many, {} lost", told.lost);
    }

    #[test]
    fn no_decision_is_later_than_its_budget(story in stories(true), local in any::<bool>()) {
        let failure = if local { OnStoreFailure::Local } else { OnStoreFailure::Deny };
        let told = Story { failure, ..story }.run();
        for decision in &told.outcome.decisions {
            prop_assert!(decision.decided.since(decision.came) <= BUDGET, "{decision:?}");
            prop_assert!(decision.passed.is_some());
        }
    }
}
