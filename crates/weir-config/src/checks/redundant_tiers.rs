//! Finds tiers that have no effect beside the other tiers of their rule.

use super::super::{error::ConfigReport, yaml::YamlPosition};
use weir_limit::{Bucket, Refill, Tier};

/// A tier that shares its counter with an earlier one is an error; one that never rejects anything gets a warning.
pub(crate) fn check(tiers: &[(Tier, YamlPosition)], report: &mut ConfigReport) {
    for (i, (tier, at)) in tiers.iter().enumerate() {
        if tiers[..i].iter().any(|(other, _)| other.shares_counter(tier)) {
            let message = match tier.calendar() {
                Some(calendar) => {
                    format!(
                        "another tier of this rule is 'per: {}' too; keep the one with fewer 'requests'",
                        calendar.unit
                    )
                }
                None => format!(
                    "another tier of this rule has the same algorithm and period {}; keep the stricter one, or change \
                     a period",
                    tier.period
                ),
            };
            report.error(*at, message);
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
    if a.calendar.is_some() {
        // its windows may be short, and two of them near each other
        return false;
    }
    if b.calendar.is_some() {
        return most_in(a, u128::from(b.longest_wait().as_nanos()), false) <= u128::from(b.requests);
    }
    let (b_requests, b_period) = (u128::from(b.requests), u128::from(b.period.as_nanos()));
    if !b.refills() {
        return most_in(a, b_period, b.has_windows()) <= b_requests;
    }
    // a bucket stays above zero if `a` admits no more than its refill and the largest burst of `a` fits into it; a refill
    // in steps may come too late for that
    let slower = u128::from(a.requests) * b_period <= b_requests * u128::from(a.period.as_nanos());
    b.bucket().refill == Refill::Continuous && slower && most_in(a, 1, false) <= u128::from(b.capacity())
}

/// The most hits in any interval of `nanos`; if `aligned`, in any that begins at a multiple of its length.
fn most_in(tier: &Tier, nanos: u128, aligned: bool) -> u128 {
    let (requests, period) = (u128::from(tier.requests), u128::from(tier.period.as_nanos()));
    if tier.refills() {
        let Bucket { burst, refill, .. } = tier.bucket();
        let steps =
            if refill == Refill::Step { requests * (nanos / period + 1) } else { requests * nanos / period };
        return u128::from(burst) + steps;
    }
    let windows = match aligned {
        _ if !tier.has_windows() => nanos.div_ceil(period),
        true if nanos.is_multiple_of(period) => nanos / period,
        true if period.is_multiple_of(nanos) => 1,
        // the interval begins and ends inside a window
        _ => nanos.div_ceil(period) + 1,
    };
    windows * requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{Calendar, CalendarUnit, CalendarWindows, Period};

    const fn fixed(requests: u32, seconds: u64) -> Tier {
        Tier::fixed_window(requests, Period::from_secs(seconds))
    }

    const fn sliding(requests: u32, seconds: u64) -> Tier {
        Tier::sliding_window(requests, Period::from_secs(seconds))
    }

    fn calendar(requests: u32) -> Tier {
        Tier::of_calendar(requests, CalendarWindows::new(Calendar::new(CalendarUnit::Day)))
    }

    const fn bucket(requests: u32, seconds: u64, burst: u32) -> Tier {
        Tier::token_bucket(requests, Period::from_secs(seconds), Bucket::of(burst))
    }

    #[test]
    fn a_tier_is_stricter_only_if_the_other_admits_all_its_traffic() {
        for (a, b, stricter) in [
            // ten per second are at most 600 per minute
            (fixed(10, 1), fixed(600, 60), true),
            (fixed(10, 1), fixed(599, 60), false),
            // the longer period may be the stricter tier
            (fixed(10, 60), fixed(10, 1), true),
            (fixed(10, 60), fixed(9, 1), false),
            // windows not aligned with each other
            (fixed(10, 7), fixed(20, 10), false),
            (fixed(10, 7), fixed(30, 10), true),
            // a sliding minute overlaps two fixed minutes
            (fixed(10, 60), sliding(10, 60), false),
            (fixed(10, 60), sliding(20, 60), true),
            (sliding(10, 60), fixed(10, 60), true),
            (bucket(1, 1, 5), fixed(65, 60), true),
            (bucket(1, 1, 6), fixed(65, 60), false),
            (bucket(1, 1, 5), bucket(1, 1, 5), true),
            (bucket(1, 1, 5), bucket(2, 1, 4), false),
            (sliding(5, 5), bucket(1, 1, 5), true),
            (fixed(5, 5), bucket(1, 1, 9), false),
            // a day has up to 25 hours, or a few more
            (fixed(1, 3_600), calendar(24), false),
            (fixed(1, 3_600), calendar(60), true),
            (calendar(1), fixed(9, 86_400), false),
        ] {
            assert_eq!(is_stricter(&a, &b), stricter, "{a} against {b}");
        }
    }
}
