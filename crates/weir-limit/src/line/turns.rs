//! When each of several instances asks their store for hits that fit at one instant.
//!
//! If all asked at once, the store would have a call of each in the same millisecond. So each has its turn within a
//! short time. Who is first changes from one opening to the next, since the first ones get hits if there are fewer than
//! instances.

use crate::{
    part::InstanceRank,
    tier::Tier,
    units::{Period, Timestamp},
};

/// The longest time over which the instances spread what they ask for at one instant. Who is served early asks again for
/// callers that come next, so that of 96 instances with a limit of 20,000 some 27 ask in the first 10 ms.
pub(super) const SPREAD: Period = Period::from_millis(60);

/// By how many turns ranks move on at each opening: the first of these that does not divide the number of instances, so
/// that each rank has every turn. Their product exceeds the largest number of instances.
const STEPS: [u64; 8] = [7, 11, 13, 17, 19, 23, 29, 31];

/// The turns of an instance among those that ask the same store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// How many instances ask, and which of them this one is.
    pub instance: InstanceRank,
    /// A random number of this instance, by which it chooses its turns if its rank is not known.
    pub seed: u64,
}

// === impl Turns ===

impl Turns {
    /// Those of an instance that asks alone: at once.
    pub const ALONE: Self = Self { instance: InstanceRank::ALONE, seed: 0 };

    pub(super) fn instances(self) -> u64 {
        self.instance.instances.get().into()
    }

    /// When to ask for hits that fit at `opening`, and that others wait for as well.
    pub(super) fn instant(self, tiers: &[Tier], opening: Timestamp) -> Timestamp {
        let period = opens(tiers).as_nanos().max(1);
        // the nearest one, since clocks differ
        let number = opening.as_nanos().saturating_add(period / 2) / period;
        let spread = u128::from(spread(tiers).as_nanos());
        let delay = match self.instance.rank {
            Some(rank) => u128::from(self.turn(rank, number)) * spread / u128::from(self.instances()),
            // random in each window, since two instances might choose the same turn for ever
            None => (u128::from(mixed(self.seed.wrapping_add(number))) * spread) >> 64,
        };
        opening.after(Period::from_nanos(u64::try_from(delay).unwrap_or_default()))
    }

    /// No two ranks have the same turn.
    fn turn(self, rank: u32, number: u64) -> u64 {
        let instances = self.instances();
        let step = STEPS.into_iter().find(|step| !instances.is_multiple_of(*step)).unwrap_or(1);
        (u64::from(rank) + instances - (number % instances) * step % instances) % instances
    }
}

/// Looks random: the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
const fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The time after which hits fit again that others wait for as well.
fn opens(tiers: &[Tier]) -> Period {
    let opens = tiers.iter().map(|tier| {
        let period = tier.period.as_nanos();
        if tier.refills() {
            let refill = u128::from(period) * u128::from(tier.capacity());
            return u64::try_from(refill / u128::from(tier.requests.max(1))).unwrap_or(u64::MAX);
        }
        if tier.has_windows() { period } else { period / 12 }
    });
    Period::from_nanos(opens.min().unwrap_or_default())
}

pub(super) fn spread(tiers: &[Tier]) -> Period {
    SPREAD.min(opens(tiers) / 10)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECOND: Period = Period::from_secs(1);

    fn window() -> [Tier; 1] {
        [Tier::fixed_window(1_000, SECOND)]
    }

    fn ranked(instances: u32, rank: u32) -> Turns {
        Turns { instance: InstanceRank::among(instances as usize, Some(rank)), seed: 0 }
    }

    /// Returns how long after `second` each of so many instances asks.
    fn delays(instances: u32, second: u64) -> Vec<Period> {
        let opening = Timestamp::from_secs(second);
        (0..instances)
            .map(|rank| ranked(instances, rank).instant(&window(), opening).since(opening))
            .collect()
    }

    #[test]
    fn of_96_instances_a_sixth_asks_in_the_first_sixth_of_the_time() {
        for second in 1_700_000_000..1_700_000_200 {
            let delays = delays(96, second);
            let early = delays.iter().filter(|delay| **delay < Period::from_millis(10)).count();
            assert_eq!(early, 16, "{second}");
            assert_eq!(delays.iter().collect::<BTreeSet<_>>().len(), 96, "two ask at the same time");
            assert!(delays.iter().all(|delay| *delay < SPREAD));
        }
    }

    #[test]
    fn everybody_is_first_as_often_as_the_others() {
        // among them multiples of the first steps
        for instances in [1, 2, 7, 8, 14, 77, 96, 1_001, 1_000] {
            let firsts: BTreeSet<usize> = (0..u64::from(instances))
                .map(|second| {
                    let delays = delays(instances, 1_700_000_000 + second);
                    delays.iter().position(|delay| *delay == Period::default()).expect("somebody is first")
                })
                .collect();
            assert_eq!(firsts.len(), instances as usize);
        }
    }

    #[test]
    fn clocks_that_differ_a_little_know_the_same_turns() {
        let opening = Timestamp::from_secs(1_700_000_000);
        let early = Timestamp::from_nanos(opening.as_nanos() - 400_000_000);
        let delay = |at| ranked(96, 5).instant(&window(), at).since(at);
        assert_eq!(delay(early), delay(opening));
    }

    #[test]
    fn turns_without_a_rank_are_random_and_within_the_time() {
        let instance = InstanceRank::among(96, None);
        let instant = |seed, second| {
            let opening = Timestamp::from_secs(second);
            Turns { instance, seed }.instant(&window(), opening).since(opening)
        };
        let of_seeds: BTreeSet<Period> = (0..96).map(|seed| instant(seed << 40, 1_700_000_000)).collect();
        let of_windows: BTreeSet<Period> = (0..96).map(|second| instant(7, 1_700_000_000 + second)).collect();
        for delays in [of_seeds, of_windows] {
            assert!(delays.len() > 90 && delays.iter().all(|delay| *delay < SPREAD), "{delays:?}");
        }
    }

    #[test]
    fn whoever_is_alone_asks_at_once() {
        let opening = Timestamp::from_secs(1_700_000_000);
        assert_eq!(Turns::ALONE.instant(&window(), opening), opening);
    }
}
