//! The part of a limit that one of several instances has, without asking the others.
//!
//! All parts together are the limit, exactly. In fixed windows the hits that are left over by the division move on from
//! window to window, and begin elsewhere for each key, so that over any run of windows no instance has two hits more
//! than another. Sliding windows and buckets have parts that do not change while the instances are the same: a part
//! that moved on would exceed the limit of an interval.

use std::num::{NonZeroU16, NonZeroU32};

use super::{
    tier::{Algorithm, Bucket, Refill, Tier},
    units::{Period, Timestamp},
};

/// The number of instances that is assumed while nothing is known of them. Each then has a hundredth of a limit.
pub const UNKNOWN_INSTANCES: NonZeroU16 = NonZeroU16::new(100).expect("not zero");

/// The place of an instance among those that split limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of instances, this one included.
    pub instances: NonZeroU32,
    /// The index of this instance, below their number. None if it is not known: then what the division leaves over
    /// belongs to nobody.
    pub rank: Option<u32>,
}

// === impl Place ===

impl Place {
    /// The place of an instance that is alone.
    pub const ALONE: Self = Self { instances: NonZeroU32::MIN, rank: Some(0) };

    /// Creates the place of rank `rank` of `instances`; none if there is no such rank.
    #[must_use]
    pub fn new(instances: u32, rank: u32) -> Option<Self> {
        let instances = NonZeroU32::new(instances).filter(|instances| rank < instances.get())?;
        Some(Self { instances, rank: Some(rank) })
    }

    /// Creates a place of unknown rank among `instances`.
    #[must_use]
    pub const fn unranked(instances: NonZeroU32) -> Self {
        Self { instances, rank: None }
    }

    /// Returns the hits that every instance has of `limit`, and those that are left over, one each for as many
    /// instances.
    const fn divide(self, limit: u32) -> (u32, u32) {
        (limit / self.instances.get(), limit % self.instances.get())
    }

    /// Returns the distance from the first rank that may have an extra hit of a key, on the circle of ranks.
    fn place_on_circle(self, rank: u32, key: u64) -> u64 {
        let instances = u64::from(self.instances.get());
        (u64::from(rank) + instances - key % instances) % instances
    }

    /// Returns the part of `limit` in the fixed window with the number `window`. `key` is a number that all instances
    /// have for the counter.
    #[must_use]
    pub fn of_window(self, limit: u32, window: u64, key: u64) -> u32 {
        let (base, rest) = self.divide(limit);
        let Some(rank) = self.rank.filter(|_| rest > 0) else { return base };
        let instances = u64::from(self.instances.get());
        // the extras of earlier windows, on the circle
        let moved = (window % instances) * u64::from(rest) % instances;
        let distance = (self.place_on_circle(rank, key) + instances - moved) % instances;
        base + u32::from(distance < u64::from(rest))
    }

    /// Returns the sum of the parts of the windows with the numbers 0 to `windows` - 1.
    #[must_use]
    pub fn received(self, limit: u32, windows: u64, key: u64) -> u128 {
        let (base, rest) = self.divide(limit);
        let all = u128::from(base) * u128::from(windows);
        let Some(rank) = self.rank.filter(|_| rest > 0) else { return all };
        let instances = u128::from(self.instances.get());
        // the extras tile the circle without gaps: each place gets one of as many in a row as there are instances
        let extras = u128::from(windows) * u128::from(rest) + instances - 1;
        all + (extras - u128::from(self.place_on_circle(rank, key))) / instances
    }

    /// Returns the number of the first window after `window` whose part has room for `hits`. None if there is none.
    #[must_use]
    pub fn next_window(self, limit: u32, hits: u64, window: u64, key: u64) -> Option<u64> {
        let (base, rest) = self.divide(limit);
        if hits <= u64::from(base) {
            return Some(window + 1);
        }
        if rest == 0 || self.rank.is_none() || hits > u64::from(base) + 1 {
            return None;
        }
        let extras = |windows: u64| {
            self.received(limit, windows, key).saturating_sub(u128::from(base) * u128::from(windows))
        };
        // no instance waits for longer than one round of all of them
        let (mut before, mut after) = (window + 1, window + 1 + u64::from(self.instances.get()));
        let so_far = extras(before);
        while before + 1 < after {
            let middle = before + (after - before) / 2;
            if extras(middle) > so_far { after = middle } else { before = middle }
        }
        Some(before)
    }

    /// Returns the part of `limit` in any interval.
    #[must_use]
    pub fn of_interval(self, limit: u32) -> u32 {
        let (base, rest) = self.divide(limit);
        base + u32::from(self.rank.is_some_and(|rank| rank < rest))
    }

    /// Returns the part of `tier`, and of a window the largest one that it ever has.
    #[must_use]
    pub fn most_of(self, tier: &Tier) -> Tier {
        match tier.algorithm {
            Algorithm::FixedWindow | Algorithm::SmoothWindow { .. } => {
                let (base, rest) = self.divide(tier.requests);
                let requests = base + u32::from(rest > 0 && self.rank.is_some());
                Tier { requests, algorithm: self.of_algorithm(tier), ..tier.clone() }
            }
            Algorithm::SlidingWindow | Algorithm::TokenBucket(_) => self.of_tier(tier),
        }
    }

    /// Returns the part of `tier` that stays the same in all of its windows.
    #[must_use]
    pub fn of_tier(self, tier: &Tier) -> Tier {
        let (requests, algorithm) = match tier.algorithm {
            Algorithm::TokenBucket(bucket) => {
                let (requests, bucket) = self.of_bucket(tier.requests, bucket);
                (requests, Algorithm::TokenBucket(bucket))
            }
            Algorithm::SmoothWindow { .. } => (self.of_interval(tier.requests), self.of_algorithm(tier)),
            algorithm => (self.of_interval(tier.requests), algorithm),
        };
        Tier { requests, algorithm, ..tier.clone() }
    }

    /// Returns the algorithm that applies the part of `tier` in a window: at most its part of a burst is admitted at
    /// once.
    #[must_use]
    pub fn of_algorithm(self, tier: &Tier) -> Algorithm {
        match tier.algorithm {
            Algorithm::SmoothWindow { burst } => {
                Algorithm::SmoothWindow { burst: self.of_interval(burst).max(1) }
            }
            algorithm => algorithm,
        }
    }

    /// Returns the part of a bucket that `requests` tokens in each period refill. It holds at least one token, so that
    /// all parts together hold as much as the bucket, or one for each instance. A bucket that is refilled in steps is
    /// divided token by token, so that the part of an instance may have none.
    #[must_use]
    pub fn of_bucket(self, requests: u32, bucket: Bucket) -> (u32, Bucket) {
        let burst = self.of_interval(bucket.burst).max(1);
        if bucket.refill == Refill::Step {
            return (self.of_interval(requests), Bucket { burst, ..bucket });
        }
        let (base, rest) = self.divide(requests);
        if rest == 0 {
            return (base, Bucket { burst, ..bucket });
        }
        let instances = u16::try_from(self.instances.get()).unwrap_or(u16::MAX);
        let refill = Refill::Part(NonZeroU16::new(instances).unwrap_or(NonZeroU16::MAX));
        (requests, Bucket { burst, refill, ..bucket })
    }
}

/// Returns the number of the fixed window of `tier` that is open at `at`, counted from the epoch.
#[must_use]
pub const fn window_number(tier: &Tier, at: Timestamp) -> u64 {
    at.as_nanos() / tier.period.as_nanos()
}

/// Returns how long a hit of `tier` matters for later ones of any instance: the time in which an interval ends, or an
/// empty bucket is full, of which one of `instances` has a part.
#[must_use]
pub fn memory(tier: &Tier, instances: NonZeroU32) -> Period {
    let Algorithm::TokenBucket(bucket) = tier.algorithm else { return tier.period };
    // a part of a token is a whole one
    let tokens = u128::from(bucket.burst) + u128::from(instances.get());
    let nanos = (u128::from(tier.period.as_nanos()) * tokens).checked_div(u128::from(tier.requests));
    nanos.and_then(|nanos| u64::try_from(nanos).ok()).map_or(Period::MAX, Period::from_nanos)
}

/// Returns `tier` as an instance without any part has it: it admits nothing.
#[must_use]
pub fn nothing_of(tier: &Tier) -> Tier {
    let algorithm = match tier.algorithm {
        Algorithm::TokenBucket(bucket) => Algorithm::TokenBucket(Bucket { burst: 0, ..bucket }),
        algorithm => algorithm,
    };
    Tier { requests: 0, algorithm, ..tier.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(instances: u32, rank: u32) -> Place {
        Place::new(instances, rank).expect("there is such a rank")
    }

    fn all(instances: u32) -> impl Iterator<Item = Place> {
        (0..instances).map(move |rank| place(instances, rank))
    }

    #[test]
    fn a_rank_is_below_the_number_of_instances() {
        assert_eq!(Place::new(0, 0), None);
        assert_eq!(Place::new(3, 3), None);
        assert_eq!(place(3, 2).rank, Some(2));
    }

    #[test]
    fn one_instance_has_all() {
        let bucket = Bucket { burst: 7, refill: Refill::Continuous, strict: true };
        for window in 0..9 {
            assert_eq!(place(1, 0).of_window(10, window, 5), 10);
        }
        assert_eq!((place(1, 0).of_interval(10), place(1, 0).of_bucket(10, bucket)), (10, (10, bucket)));
    }

    #[test]
    fn an_unknown_rank_has_what_everybody_has() {
        let place = Place::unranked(NonZeroU32::new(4).expect("not zero"));
        let bucket = Bucket { burst: 7, refill: Refill::Continuous, strict: false };
        assert_eq!((place.of_window(10, 3, 1), place.of_interval(10), place.of_interval(3)), (2, 2, 0));
        assert_eq!(place.received(10, 5, 1), 10);
        assert_eq!(place.of_bucket(8, bucket), (2, Bucket { burst: 1, ..bucket }));
    }

    /// The largest numbers that there can be.
    #[test]
    fn nothing_overflows() {
        let last = place(u32::MAX, u32::MAX - 1);
        assert!(last.of_window(u32::MAX - 1, u64::MAX, u64::MAX) <= 1);
        assert!(last.received(u32::MAX - 1, u64::MAX, u64::MAX) > 1 << 63);
        let tier = Tier { requests: 1, period: Period::MAX, algorithm: Algorithm::SlidingWindow };
        assert_eq!(memory(&tier, last.instances), Period::MAX);
        let bucket = Bucket { burst: u32::MAX, refill: Refill::Continuous, strict: false };
        let tier = Tier { requests: 0, algorithm: Algorithm::TokenBucket(bucket), ..tier };
        assert_eq!(memory(&tier, last.instances), Period::MAX);
    }

    #[test]
    fn a_bucket_matters_until_it_is_full_again() {
        let bucket = Bucket { burst: 10, refill: Refill::Continuous, strict: false };
        let tier =
            Tier { requests: 2, period: Period::from_secs(1), algorithm: Algorithm::TokenBucket(bucket) };
        assert_eq!(memory(&tier, NonZeroU32::new(4).expect("not zero")), Period::from_secs(7));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// In each window all parts are the limit, and over any run of windows two instances differ by one hit at most.
        #[test]
        fn parts_of_fixed_windows_are_exact_and_even(
            limit in 0..90_u32,
            instances in 1..40_u32,
            key: u64,
            first in 0..1_u64 << 40,
            windows in 1..80_u64,
        ) {
            let mut sums = vec![0_u32; instances as usize];
            for window in first..first + windows {
                let parts: Vec<u32> =
                    all(instances).map(|place| place.of_window(limit, window, key)).collect();
                prop_assert_eq!(parts.iter().sum::<u32>(), limit);
                for (sum, part) in sums.iter_mut().zip(parts) {
                    *sum += part;
                }
                prop_assert!(sums.iter().max().zip(sums.iter().min()).is_some_and(|(max, min)| max - min <= 1));
            }
        }

        #[test]
        fn no_window_has_more_than_the_most(
            limit in 0..90_u32,
            instances in 1..40_u32,
            rank in 0..40_u32,
            key: u64,
            first in 0..1_u64 << 40,
        ) {
            let place = place(instances, rank % instances);
            let tier =
                Tier { requests: limit, period: Period::from_secs(1), algorithm: Algorithm::FixedWindow };
            // a round of all instances
            let windows = first..first + u64::from(instances);
            let most = windows.map(|window| place.of_window(limit, window, key)).max();
            prop_assert_eq!(most, Some(place.most_of(&tier).requests));
        }

        #[test]
        fn what_was_received_is_the_sum_of_the_parts(
            limit in 0..90_u32,
            instances in 1..40_u32,
            rank in 0..40_u32,
            key: u64,
            windows in 0..200_u64,
        ) {
            let place = place(instances, rank % instances);
            let sum: u128 = (0..windows).map(|window| u128::from(place.of_window(limit, window, key))).sum();
            prop_assert_eq!(place.received(limit, windows, key), sum);
        }

        #[test]
        fn the_next_window_is_the_first_one_with_room(
            limit in 0..90_u32,
            instances in 1..40_u32,
            rank in 0..40_u32,
            key: u64,
            window in 0..1_u64 << 40,
            hits in 1..6_u64,
        ) {
            let place = place(instances, rank % instances);
            let has_room = |window: &u64| u64::from(place.of_window(limit, *window, key)) >= hits;
            let found = (window + 1..=window + 1 + u64::from(instances)).find(has_room);
            prop_assert_eq!(place.next_window(limit, hits, window, key), found);
        }

        #[test]
        fn parts_of_intervals_and_buckets_add_up(
            limit in 0..500_u32,
            burst in 1..500_u32,
            instances in 1..80_u32,
            is_stepped: bool,
        ) {
            let refill = if is_stepped { Refill::Step } else { Refill::Continuous };
            let bucket = Bucket { burst, refill, strict: false };
            let parts: Vec<(u32, Bucket)> =
                all(instances).map(|place| place.of_bucket(limit, bucket)).collect();
            prop_assert_eq!(all(instances).map(|place| place.of_interval(limit)).sum::<u32>(), limit);
            let bursts: u32 = parts.iter().map(|(_, part)| part.burst).sum();
            prop_assert!(bursts == burst.max(instances) || bursts < burst.max(instances));
            prop_assert!(bursts >= burst);
            // in units of a hit in as many periods as there are instances
            let pace: u64 = parts
                .iter()
                .map(|(requests, part)| match part.refill {
                    Refill::Part(periods) => {
                        u64::from(*requests) * u64::from(instances) / u64::from(periods.get())
                    }
                    _ => u64::from(*requests) * u64::from(instances),
                })
                .sum();
            prop_assert_eq!(pace, u64::from(limit) * u64::from(instances));
        }
    }
}
