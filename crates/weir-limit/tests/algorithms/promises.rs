//! Tests that a decision's remaining requests and waits are exact.

use proptest::{collection::vec, prelude::*, sample::select};
use weir_limit::{Algorithm, Bucket, Direction, Period, Refill, Tier, Timestamp};

use crate::support::{Rule, START, Try, later, tier, tries_with_steps_back};

/// Returns the period of a window, or the time in which an empty bucket fills.
fn longest_wait(tier: &Tier) -> Period {
    let Algorithm::TokenBucket(bucket) = tier.algorithm else { return tier.period };
    let (burst, requests, period) =
        (u64::from(bucket.burst), u64::from(tier.requests), u128::from(tier.period.as_nanos()));
    let nanos = match bucket.refill {
        Refill::Continuous | Refill::AnyPace | Refill::Part(_) => {
            (u128::from(burst) * period).div_ceil(requests.into())
        }
        Refill::Step => u128::from(burst.div_ceil(requests)) * period,
    };
    Period::from_nanos(u64::try_from(nanos).expect("less than centuries"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_rejected_request_is_admitted_after_the_reported_wait_and_not_before(
        tiers in vec(tier(), 1..4),
        tries in tries_with_steps_back(60),
    ) {
        let mut rule = Rule::new(tiers, START);
        let mut now = START;
        for Try { later: share, hits } in tries {
            now = later(now, &rule.tiers[0].clone(), share);
            let decision = rule.take(hits, now);
            if decision.over && hits <= rule.capacity() {
                let wait = decision.reset.as_nanos();
                prop_assert!(wait > 0);
                prop_assert!(rule.would_pass(hits, now.after(decision.reset)), "rejected after {wait} ns");
                let early = now.after(Period::from_nanos(wait - 1));
                prop_assert!(!rule.would_pass(hits, early), "admitted before {wait} ns");
            }
        }
    }

    #[test]
    fn no_wait_is_longer_than_the_limit_can_imply_whatever_the_clock_shows(
        tiers in vec(tier(), 1..4),
        tries in tries_with_steps_back(60),
        steps in vec(prop_oneof![4 => Just(0), 1 => -90_000_i64..90_000], 60),
    ) {
        let mut rule = Rule::new(tiers, START);
        let longest = rule.tiers.iter().map(longest_wait).max().expect("there are tiers");
        let (mut now, mut latest) = (START, START);
        for (Try { later: share, hits }, step) in tries.into_iter().zip(steps) {
            let stepped = Timestamp::from_secs(now.as_nanos().div_ceil(1_000_000_000).saturating_add_signed(step));
            now = later(if step == 0 { now } else { stepped }, &rule.tiers[0].clone(), share);
            latest = latest.max(now);
            // what was counted before a step back stays until the clock is there again
            let longest = Period::from_nanos(longest.as_nanos() + latest.since(now).as_nanos());
            for direction in [Direction::Take, Direction::GiveBack] {
                let given = if direction == Direction::Take { hits } else { 0 };
                let decision = rule.decide(direction, given, now);
                prop_assert!(decision.reset <= longest, "{:?} > {longest:?}", decision.reset);
            }
        }
    }

    #[test]
    fn the_remaining_requests_are_admitted_and_no_more(
        tiers in vec(tier(), 1..3),
        tries in tries_with_steps_back(60),
    ) {
        let mut rule = Rule::new(tiers, START);
        let mut now = START;
        for Try { later: share, hits } in tries {
            now = later(now, &rule.tiers[0].clone(), share);
            let decision = rule.take(hits, now);
            if rule.tiers.len() == 1 {
                let remaining = u64::from(decision.remaining);
                prop_assert!(remaining == 0 || rule.would_pass(remaining, now));
                prop_assert!(!rule.would_pass(remaining + 1, now));
            }
        }
    }

    #[test]
    fn a_clock_that_steps_back_admits_no_more(
        tiers in vec(tier(), 1..3),
        tries in tries_with_steps_back(60),
        share in 0.0..2.0_f64,
    ) {
        let mut rule = Rule::new(tiers, START);
        let mut now = START;
        for Try { later: step, hits } in tries {
            let first = rule.tiers[0].clone();
            now = later(now, &first, step);
            let earlier = later(now, &first, -share);
            prop_assert!(rule.would_pass(hits, now) || !rule.would_pass(hits, earlier), "{hits} at {earlier:?}");
            rule.take(hits, now);
        }
    }

    #[test]
    fn a_strict_bucket_rejects_a_caller_that_keeps_trying(
        burst in 1..10_u32,
        refill in select(&[Refill::Continuous, Refill::Step][..]),
        shares in vec(0.01..0.99_f64, 20..60),
    ) {
        let bucket = Bucket { burst, refill, strict: true };
        let tier = Tier::new(1, Period::from_secs(10), Algorithm::TokenBucket(bucket));
        let mut rule = Rule::new(vec![tier.clone()], START);
        prop_assert!(!rule.take(burst.into(), START).over);
        let mut now = START;
        for share in shares {
            now = later(now, &tier, share);
            prop_assert!(rule.take(1, now).over);
        }
        prop_assert!(!rule.take(1, now.after(tier.period)).over);
    }
}

#[test]
fn the_largest_limits_and_hits_are_exact() {
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket(Bucket { burst: u32::MAX, refill: Refill::Continuous, strict: false }),
        Algorithm::TokenBucket(Bucket { burst: u32::MAX, refill: Refill::Step, strict: true }),
    ] {
        for period in [Period::from_millis(100), Period::from_secs(365 * 86_400)] {
            let all = u64::from(u32::MAX);
            let mut rule = Rule::new(vec![Tier::new(u32::MAX, period, algorithm)], START);
            assert_eq!(rule.take(all - 1, START).remaining, 1, "{algorithm:?}");
            assert!(rule.take(2, START).over);
            assert!(!rule.take(1, START).over);
            assert!(rule.take(1, START).over);
            assert!(rule.take(u64::MAX, START).over);
            rule.decide(Direction::GiveBack, all, START);
            assert_eq!(rule.take(0, START).remaining, u32::MAX);
        }
    }
}
