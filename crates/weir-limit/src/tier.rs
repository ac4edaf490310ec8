//! A limit's parameters: the requests that a period admits, and the algorithm that applies the period.

use std::{fmt, num::NonZeroU16, ops::Deref, slice, sync::Arc};

use smallvec::SmallVec;

use super::units::{Period, Unit};

/// One limit: `requests` in each `period`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// 0 to 2^32-1; 0 admits nothing.
    pub requests: u32,
    /// Longer than zero.
    pub period: Period,
    /// The algorithm that applies the period.
    pub algorithm: Algorithm,
}

/// The tiers of one limit. Most limits have one, which is stored inline.
pub type Tiers = SmallVec<[Tier; 1]>;

/// At least one tier, in an allocation that the limit shares with its counters: they hold eight bytes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTiers(Arc<Tiers>);

/// The algorithm that applies a tier's period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// At most `requests` in each epoch-aligned window of one period: the algorithm of envoyproxy/ratelimit.
    #[default]
    FixedWindow,
    /// At most `requests` in any interval of one period.
    SlidingWindow,
    /// `requests` tokens per period refill a bucket that holds a burst.
    TokenBucket(Bucket),
}

/// The parameters of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Tokens in a full bucket, 1 to 2^32-1.
    pub burst: u32,
    /// How tokens are refilled.
    pub refill: Refill,
    /// A rejected request restarts the refill clock, so a caller that keeps trying keeps being rejected.
    pub strict: bool,
}

/// How tokens are refilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refill {
    /// Evenly, one every `period / requests`: at most `burst + requests * t / period` hits in any time `t`.
    #[default]
    Continuous,
    /// `requests` of them at the end of each period, counted from the first hit. At most `burst + requests * (floor(t /
    /// period) + 1)` hits are admitted in any time `t`: even the shortest may contain a step.
    Step,
    /// As [`Refill::Continuous`], but one bucket for all periods: the period comes with the request, like `requests`.
    AnyPace,
    /// As [`Refill::Continuous`], but over so many periods: an instance's part, which uses the whole bucket's counter.
    Part(NonZeroU16),
}

/// Whether rejected hits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLimitPolicy {
    /// Rejected hits count, as in envoyproxy/ratelimit. For rules in its syntax, which have one tier.
    Count,
    /// Rejected hits do not count: a request takes nothing from any tier unless all of them admit it.
    Ignore,
}

/// Returns the most hits that all of `tiers` admit at once: the smallest of their capacities; 0 if there are none.
#[must_use]
pub fn capacity(tiers: &[Tier]) -> u64 {
    tiers.iter().map(|tier| u64::from(tier.capacity())).min().unwrap_or_default()
}

// === impl Tier ===

impl Tier {
    /// Returns the parameters of a token bucket; for other algorithms, a bucket whose burst is the limit.
    #[must_use]
    pub const fn bucket(&self) -> Bucket {
        match self.algorithm {
            Algorithm::TokenBucket(bucket) => bucket,
            _ => Bucket { burst: self.requests, refill: Refill::Continuous, strict: false },
        }
    }

    /// Returns the most hits that the tier admits at once: the burst of a bucket, the limit of a window.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.bucket().burst
    }

    /// Returns the bucket that spreads the hits of this window over it, `burst` of them at once.
    #[must_use]
    pub const fn pace(&self, burst: u32) -> Self {
        let bucket = Bucket { burst, refill: Refill::Continuous, strict: false };
        Self { requests: self.requests, period: self.period, algorithm: Algorithm::TokenBucket(bucket) }
    }

    /// Returns the time in which `requests` tokens flow into a bucket; for other algorithms, the period.
    #[must_use]
    pub const fn refill_period(&self) -> Period {
        match self.algorithm {
            Algorithm::TokenBucket(Bucket { refill: Refill::Part(periods), .. }) => {
                Period::from_nanos(self.period.as_nanos().saturating_mul(periods.get() as u64))
            }
            _ => self.period,
        }
    }

    /// Returns the longest wait without reservations and clock steps: a period, or until a bucket in debt is full.
    #[must_use]
    pub const fn longest_wait(&self) -> Period {
        let Algorithm::TokenBucket(bucket) = self.algorithm else {
            return self.period;
        };
        if self.requests == 0 {
            return Period::MAX;
        }
        // in steps it takes no longer than this
        let refills = (2 * bucket.burst as u64).div_ceil(self.requests as u64);
        Period::from_nanos(self.refill_period().as_nanos().saturating_mul(refills))
    }

    /// Returns whether both use the same counter of a key: the same kind of algorithm and period, or both any pace.
    #[must_use]
    pub fn shares_counter(&self, other: &Self) -> bool {
        use std::mem::discriminant;
        let paces = (self.has_any_pace(), other.has_any_pace());
        if paces.0 || paces.1 {
            return paces.0 && paces.1;
        }
        self.period == other.period && discriminant(&self.algorithm) == discriminant(&other.algorithm)
    }

    /// Returns whether its counter is a bucket of [any pace](Refill::AnyPace).
    #[must_use]
    pub const fn has_any_pace(&self) -> bool {
        matches!(self.algorithm, Algorithm::TokenBucket(Bucket { refill: Refill::AnyPace, .. }))
    }

    /// Returns the unit to report, if the period is exactly one unit.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        Unit::of(self.refill_period())
    }
}

// === impl SharedTiers ===

impl Deref for SharedTiers {
    type Target = [Tier];

    fn deref(&self) -> &[Tier] {
        &self.0
    }
}

impl<T: IntoIterator<Item = Tier>> From<T> for SharedTiers {
    fn from(tiers: T) -> Self {
        tiers.into_iter().collect()
    }
}

impl FromIterator<Tier> for SharedTiers {
    fn from_iter<I: IntoIterator<Item = Tier>>(tiers: I) -> Self {
        Self(Arc::new(tiers.into_iter().collect()))
    }
}

impl<'a> IntoIterator for &'a SharedTiers {
    type Item = &'a Tier;
    type IntoIter = slice::Iter<'a, Tier>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Formats the tier, such as `1000 requests per 10s, sliding window`.
impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, algorithm, .. } = self;
        let period = self.refill_period();
        write!(f, "{requests} request{} per {period}", if *requests == 1 { "" } else { "s" })?;
        match algorithm {
            Algorithm::FixedWindow => Ok(()),
            Algorithm::SlidingWindow => f.write_str(", sliding window"),
            Algorithm::TokenBucket(Bucket { burst, refill, strict }) => {
                write!(f, ", token bucket with a burst of {burst}")?;
                if *refill == Refill::Step {
                    f.write_str(", refilled in steps")?;
                }
                if *strict {
                    f.write_str(", strict")?;
                }
                Ok(())
            }
        }
    }
}
