//! Finds tiers that have no effect beside the other tiers of their rule.

use super::super::{error::ConfigReport, yaml::YamlPosition};
use weir_limit::{Algorithm, Bucket, Refill, Tier};

/// A tier that shares its counter with an earlier one is an error; one that never rejects anything gets a warning.
pub(crate) fn check(tiers: &[(Tier, YamlPosition)], report: &mut ConfigReport) {
    for (i, (tier, at)) in tiers.iter().enumerate() {
        let same = |other: &Tier| {
            other.period == tier.period
                && std::mem::discriminant(&other.algorithm) == std::mem::discriminant(&tier.algorithm)
        };
        if tiers[..i].iter().any(|(other, _)| same(other)) {
            report.error(
                *at,
                format!(
                    "another tier of this rule has the same algorithm and period {}; keep the stricter one, or change \
                     a period",
                    tier.period
                ),
            );
        } else if let Some((stricter, _)) = tiers
            .iter()
            .enumerate()
            .find(|(j, (other, _))| i != *j && is_stricter(other, tier))
            .map(|(_, tier)| tier)
        {
            report.warn(*at, format!("this tier never rejects a request: '{stricter}' is always stricter"));
        }
    }
}

/// Whether `b` allows all that `a` admits, for any traffic. May be false although it does.
fn is_stricter(a: &Tier, b: &Tier) -> bool {
    let (b_requests, b_period) = (u128::from(b.requests), u128::from(b.period.as_nanos()));
    match b.algorithm {
        Algorithm::FixedWindow => most_in(a, b_period, true) <= b_requests,
        Algorithm::SlidingWindow => most_in(a, b_period, false) <= b_requests,
        // a bucket stays above zero if `a` admits no more than its refill and the largest burst of `a` fits into it; a
        // refill in steps may come too late for that
        Algorithm::TokenBucket(bucket) => {
            let burst = match a.algorithm {
                Algorithm::TokenBucket(a) if a.refill == Refill::Continuous => a.burst.into(),
                Algorithm::TokenBucket(Bucket { burst, .. }) => u128::from(burst) + u128::from(a.requests),
                Algorithm::SlidingWindow => a.requests.into(),
                // the end of one window and the start of the next
                Algorithm::FixedWindow => 2 * u128::from(a.requests),
            };
            let slower = u128::from(a.requests) * b_period <= b_requests * u128::from(a.period.as_nanos());
            bucket.refill == Refill::Continuous && slower && burst <= u128::from(bucket.burst)
        }
    }
}

/// The most hits in any interval of `nanos`; if `aligned`, in any that begins at a multiple of its length.
fn most_in(tier: &Tier, nanos: u128, aligned: bool) -> u128 {
    let (requests, period) = (u128::from(tier.requests), u128::from(tier.period.as_nanos()));
    match tier.algorithm {
        Algorithm::FixedWindow => {
            let windows = match aligned {
                true if nanos.is_multiple_of(period) => nanos / period,
                true if period.is_multiple_of(nanos) => 1,
                // the interval begins and ends inside a window
                _ => nanos.div_ceil(period) + 1,
            };
            windows * requests
        }
        Algorithm::SlidingWindow => nanos.div_ceil(period) * requests,
        Algorithm::TokenBucket(Bucket {
            burst,
            refill: Refill::Continuous | Refill::AnyPace | Refill::Part(_),
            ..
        }) => u128::from(burst) + requests * nanos / period,
        Algorithm::TokenBucket(Bucket { burst, refill: Refill::Step, .. }) => {
            u128::from(burst) + requests * (nanos / period + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::Period;

    fn tier(requests: u32, seconds: u64, algorithm: Algorithm) -> Tier {
        Tier { requests, period: Period::from_secs(seconds), algorithm }
    }

    const fn bucket(burst: u32) -> Algorithm {
        Algorithm::TokenBucket(Bucket { burst, refill: Refill::Continuous, strict: false })
    }

    #[test]
    fn a_tier_is_stricter_only_if_the_other_admits_all_its_traffic() {
        let (fixed, sliding) = (Algorithm::FixedWindow, Algorithm::SlidingWindow);
        for (a, b, stricter) in [
            // ten per second are at most 600 per minute
            (tier(10, 1, fixed), tier(600, 60, fixed), true),
            (tier(10, 1, fixed), tier(599, 60, fixed), false),
            // the longer period may be the stricter tier
            (tier(10, 60, fixed), tier(10, 1, fixed), true),
            (tier(10, 60, fixed), tier(9, 1, fixed), false),
            // windows not aligned with each other
            (tier(10, 7, fixed), tier(20, 10, fixed), false),
            (tier(10, 7, fixed), tier(30, 10, fixed), true),
            // a sliding minute overlaps two fixed minutes
            (tier(10, 60, fixed), tier(10, 60, sliding), false),
            (tier(10, 60, fixed), tier(20, 60, sliding), true),
            (tier(10, 60, sliding), tier(10, 60, fixed), true),
            (tier(1, 1, bucket(5)), tier(65, 60, fixed), true),
            (tier(1, 1, bucket(6)), tier(65, 60, fixed), false),
            (tier(1, 1, bucket(5)), tier(1, 1, bucket(5)), true),
            (tier(1, 1, bucket(5)), tier(2, 1, bucket(4)), false),
            (tier(5, 5, sliding), tier(1, 1, bucket(5)), true),
            (tier(5, 5, fixed), tier(1, 1, bucket(9)), false),
        ] {
            assert_eq!(is_stricter(&a, &b), stricter, "{a} against {b}");
        }
    }
}
