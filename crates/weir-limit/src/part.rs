//! The part of a limit that one of several instances has, without asking the others.
//!
//! All parts together are the limit at most: what the division leaves over belongs to nobody.

use std::num::{NonZeroU16, NonZeroU32};

use super::{
    algorithm::{Bucket, Refill},
    tier::Tier,
    units::Period,
};

/// The number of instances that is assumed while nothing is known of them. Each then has a hundredth of a limit.
pub const UNKNOWN_INSTANCES: NonZeroU16 = NonZeroU16::new(100).expect("not zero");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceRank {
    /// The number of instances, this one included.
    pub instances: NonZeroU32,
    /// The index of this instance, below their number. None if it is not known.
    pub rank: Option<u32>,
}

// === impl InstanceRank ===

impl InstanceRank {
    pub const ALONE: Self = Self { instances: NonZeroU32::MIN, rank: Some(0) };

    /// Creates the rank of one of `instances`, at least one. A `rank` that there cannot be is not known.
    pub fn among(instances: usize, rank: Option<u32>) -> Self {
        let instances = u32::try_from(instances).unwrap_or(u32::MAX);
        let instances = NonZeroU32::new(instances).unwrap_or(NonZeroU32::MIN);
        Self { instances, rank: rank.filter(|rank| *rank < instances.get()) }
    }
}

/// Returns the part of one of `instances`. A bucket holds at least one token; one refilled in steps may get none.
pub fn of_tier(tier: &Tier, instances: NonZeroU32) -> Tier {
    let divided = |limit: u32| limit / instances.get();
    let part = tier.with_limits(divided(tier.requests), divided(tier.capacity()).max(1));
    let bucket = part.bucket();
    let is_whole = bucket.refill == Refill::Step || tier.requests.is_multiple_of(instances.get());
    if is_whole || !tier.refills() {
        return part;
    }
    // as many tokens in as many periods
    let periods = u16::try_from(instances.get()).unwrap_or(u16::MAX);
    let refill = Refill::Part(NonZeroU16::new(periods).unwrap_or(NonZeroU16::MAX));
    let algorithm = tier.algorithm.with_bucket(Bucket { refill, ..bucket });
    Tier { requests: tier.requests, algorithm, ..part }
}

/// Returns how long a hit matters for later ones of any instance: an interval, or until an empty bucket is full.
pub fn memory(tier: &Tier, instances: NonZeroU32) -> Period {
    if !tier.refills() {
        return tier.period;
    }
    // a part of a token is a whole one
    let tokens = u128::from(tier.capacity()) + u128::from(instances.get());
    let nanos = (u128::from(tier.period.as_nanos()) * tokens).checked_div(u128::from(tier.requests));
    nanos.and_then(|nanos| u64::try_from(nanos).ok()).map_or(Period::MAX, Period::from_nanos)
}

/// Returns `tier` as an instance without any part has it: it admits nothing.
pub fn nothing_of(tier: &Tier) -> Tier {
    tier.with_limits(0, 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(instances: u32) -> NonZeroU32 {
        NonZeroU32::new(instances).expect("not zero")
    }

    #[test]
    fn a_rank_is_below_the_number_of_instances() {
        assert_eq!(InstanceRank::among(0, Some(0)), InstanceRank::ALONE);
        assert_eq!(InstanceRank::among(3, Some(3)).rank, None);
        assert_eq!(InstanceRank::among(3, Some(2)).rank, Some(2));
    }

    #[test]
    fn nothing_overflows() {
        let most = number(u32::MAX);
        assert_eq!(memory(&Tier::sliding_window(1, Period::MAX), most), Period::MAX);
        let bucket = Tier::token_bucket(0, Period::MAX, Bucket::of(u32::MAX));
        assert_eq!(memory(&bucket, most), Period::MAX);
        assert_eq!(of_tier(&bucket, most).capacity(), 1);
    }

    #[test]
    fn a_bucket_matters_until_it_is_full_again() {
        let bucket = Tier::token_bucket(2, Period::from_secs(1), Bucket::of(10));
        assert_eq!(memory(&bucket, number(4)), Period::from_secs(7));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn all_parts_are_the_limit_but_for_a_rest(limit in 0..500_u32, instances in 1..80_u32) {
            for tier in [Tier::fixed_window, Tier::sliding_window] {
                let tier = tier(limit, Period::from_secs(1));
                let all = of_tier(&tier, number(instances)).requests * instances;
                prop_assert!(all <= limit && all + instances > limit);
            }
        }

        #[test]
        fn parts_of_buckets_hold_and_receive_no_more_than_the_bucket(
            limit in 0..500_u32,
            burst in 1..500_u32,
            instances in 1..80_u32,
            is_stepped: bool,
        ) {
            let refill = if is_stepped { Refill::Step } else { Refill::Continuous };
            let bucket = Bucket { refill, ..Bucket::of(burst) };
            let bucket = Tier::token_bucket(limit, Period::from_secs(1), bucket);
            let part = of_tier(&bucket, number(instances));
            prop_assert!(part.capacity() * instances <= burst.max(instances));
            // in units of a hit in as many periods as there are instances
            let pace = u64::from(part.requests) * u64::from(instances);
            let all = match part.bucket().refill {
                Refill::Part(periods) => pace / u64::from(periods.get()) * u64::from(instances),
                _ => pace * u64::from(instances),
            };
            let whole = u64::from(limit) * u64::from(instances);
            prop_assert!(all == whole || is_stepped && all <= whole);
        }
    }
}
