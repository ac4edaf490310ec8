//! A limit that comes with the request instead of the configuration.

use smallvec::smallvec;

use super::{
    tier::{OverLimitPolicy, Tier, Tiers},
    units::{Period, Unit},
};

/// A limit that the caller sends with a descriptor. Always valid: stores rely on what [`RuntimeLimit::new`] checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeLimit {
    tiers: Tiers,
    over_limit_policy: OverLimitPolicy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeLimitError {
    #[error("a limit needs at least one tier")]
    NoTiers,
    #[error("the period {0} is not in 1ms..=365d")]
    Period(Period),
    #[error("a token bucket's burst must be at least 1")]
    NoBurst,
    #[error("two tiers have the same algorithm and period {0}")]
    Repeated(Period),
    /// [`OverLimitPolicy::Count`] applies to anything but a single fixed window.
    #[error("rejected hits can count in a single fixed window only")]
    Count,
}

// === impl RuntimeLimit ===

impl RuntimeLimit {
    /// The bounds of a period, as in the rule language.
    const SHORTEST: Period = Period::from_millis(1);
    const LONGEST: Period = Unit::Year.period();

    pub fn new(tiers: Tiers, over_limit_policy: OverLimitPolicy) -> Result<Self, RuntimeLimitError> {
        for (i, tier) in tiers.iter().enumerate() {
            if !(Self::SHORTEST..=Self::LONGEST).contains(&tier.period) {
                return Err(RuntimeLimitError::Period(tier.period));
            }
            if tier.refills() && tier.capacity() == 0 {
                return Err(RuntimeLimitError::NoBurst);
            }
            if tiers[..i].iter().any(|other| other.shares_counter(tier)) {
                return Err(RuntimeLimitError::Repeated(tier.period));
            }
        }
        match (&*tiers, over_limit_policy) {
            ([], _) => Err(RuntimeLimitError::NoTiers),
            ([tier], OverLimitPolicy::Count) if tier.has_windows() => Ok(Self { tiers, over_limit_policy }),
            (_, OverLimitPolicy::Count) => Err(RuntimeLimitError::Count),
            (_, OverLimitPolicy::Ignore) => Ok(Self { tiers, over_limit_policy }),
        }
    }

    /// Creates an override as envoyproxy/ratelimit applies it: a fixed window in which rejected hits count.
    pub fn per_unit(requests: u32, unit: Unit) -> Self {
        Self {
            tiers: smallvec![Tier::fixed_window(requests, unit.period())],
            over_limit_policy: OverLimitPolicy::Count,
        }
    }

    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    pub const fn over_limit_policy(&self) -> OverLimitPolicy {
        self.over_limit_policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Bucket;

    fn fixed(seconds: u64) -> Tier {
        Tier::fixed_window(5, Period::from_secs(seconds))
    }

    fn sliding(seconds: u64) -> Tier {
        Tier::sliding_window(5, Period::from_secs(seconds))
    }

    fn bucket(burst: u32) -> Tier {
        Tier::token_bucket(5, Period::from_secs(1), Bucket::of(burst))
    }

    fn checked(tiers: &[Tier], policy: OverLimitPolicy) -> Result<(), RuntimeLimitError> {
        RuntimeLimit::new(tiers.into(), policy).map(|_| ())
    }

    #[test]
    fn any_algorithm_and_several_tiers_are_valid() {
        let tiers = [fixed(1), sliding(1), bucket(1), sliding(60)];
        assert_eq!(checked(&tiers, OverLimitPolicy::Ignore), Ok(()));
        assert_eq!(checked(&tiers[..1], OverLimitPolicy::Count), Ok(()));
        let per_unit = RuntimeLimit::per_unit(5, Unit::Second);
        assert_eq!(Ok(per_unit), RuntimeLimit::new(tiers[..1].into(), OverLimitPolicy::Count));
    }

    #[test]
    fn limits_that_no_store_can_count_are_rejected() {
        use RuntimeLimitError as Error;
        let year = 365 * 86_400;
        for (tiers, policy, error) in [
            (vec![], OverLimitPolicy::Ignore, Error::NoTiers),
            (vec![fixed(0)], OverLimitPolicy::Ignore, Error::Period(Period::from_secs(0))),
            (vec![fixed(year + 1)], OverLimitPolicy::Ignore, Error::Period(Period::from_secs(year + 1))),
            (vec![bucket(0)], OverLimitPolicy::Ignore, Error::NoBurst),
            (vec![bucket(1), bucket(2)], OverLimitPolicy::Ignore, Error::Repeated(Period::from_secs(1))),
            (vec![fixed(1), fixed(2)], OverLimitPolicy::Count, Error::Count),
            (vec![sliding(1)], OverLimitPolicy::Count, Error::Count),
        ] {
            assert_eq!(checked(&tiers, policy), Err(error), "{tiers:?}");
        }
    }
}
