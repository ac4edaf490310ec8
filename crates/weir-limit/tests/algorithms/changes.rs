//! Tests refunds, checks without hits, and changed limits.

use proptest::{collection::vec, prelude::*};
use weir_limit::{Algorithm, Bucket, Direction, Refill};

use crate::support::{Rule, START, later, run, tier, tries};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_refund_reverts_a_take_and_a_check_without_hits_changes_nothing(
        tier in tier(),
        before in tries(40),
        hits in 1..20_u64,
    ) {
        let mut rule = Rule::new(vec![tier.clone()], START);
        run(&mut rule, &before);
        let now = before.iter().fold(START, |now, each| later(now, &tier, each.later));
        let original = rule.clone();

        rule.take(0, now);
        prop_assert_eq!(&rule.counters, &original.counters, "a check without hits");

        if !rule.take(hits, now).over {
            rule.decide(Direction::GiveBack, hits, now);
        }
        for probe in 0..=u64::from(tier.capacity()) + 1 {
            prop_assert_eq!(
                rule.would_pass(probe, now), original.would_pass(probe, now), "{} after take and refund", probe
            );
        }
        rule.decide(Direction::GiveBack, u64::MAX, now);
        prop_assert!(rule.would_pass(u64::from(tier.capacity()), now), "all given back");
        prop_assert!(!rule.would_pass(u64::from(tier.capacity()) + 1, now), "but never past full");
    }

    #[test]
    fn a_changed_limit_applies_immediately_and_keeps_the_counts(
        first in tier(),
        steps in vec((1..20_u32, 1..20_u32, 0.0..0.7_f64, 1..8_u64), 1..40),
    ) {
        let mut rule = Rule::new(vec![first.clone()], START);
        let mut now = START;
        for (requests, burst, share, hits) in steps {
            now = later(now, &first, share);
            let used = rule.take(0, now).before.0;
            let held = rule.counters[0].used().0;
            let tier = &mut rule.tiers[0];
            tier.requests = requests;
            if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
                bucket.burst = burst;
            }
            let (tier, capacity) = (tier.clone(), u64::from(tier.capacity()));

            let after = rule.clone().take(0, now);
            prop_assert!(u64::from(after.remaining) <= capacity);
            match tier.algorithm {
                // the new limit without the used hits: more if raised, none if lowered below the used hits
                Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                    prop_assert_eq!(u64::from(after.remaining), capacity.saturating_sub(used));
                }
                Algorithm::TokenBucket(_) => {
                    prop_assert!(u64::from(after.remaining) >= capacity.saturating_sub(held));
                }
            }
            let decision = rule.take(hits, now);
            prop_assert!(decision.over || hits <= u64::from(after.remaining), "admitted by the old limit");
            if decision.over && hits <= capacity {
                let period = tier.period.as_nanos();
                let longest = match tier.algorithm {
                    Algorithm::FixedWindow | Algorithm::SlidingWindow => period,
                    Algorithm::TokenBucket(Bucket { refill: Refill::Continuous | Refill::AnyPace | Refill::Part(_), .. }) => {
                        // a lowered burst leaves at most one more of debt
                        ((hits + capacity) * period).div_ceil(requests.into())
                    }
                    Algorithm::TokenBucket(Bucket { refill: Refill::Step, .. }) => {
                        (hits + capacity).div_ceil(requests.into()) * period
                    }
                };
                prop_assert!(decision.reset.as_nanos() <= longest, "{:?} of {longest}", decision.reset);
            }
        }
    }
}
