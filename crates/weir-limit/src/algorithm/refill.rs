//! The flow of tokens into a bucket. All results are exact; a division of 128 bits is made only where 64 bits do not
//! suffice.

use super::token_bucket::Refill;
use crate::{tier::Tier, units::Period};

/// One token, in units of 2^-31 tokens.
pub(super) const TOKEN: u64 = 1 << TOKEN_BITS;

const TOKEN_BITS: u32 = 31;

/// Inflow during `elapsed` with continuous refill, in units of 2^-31 tokens, rounded down. `most` is below 2^63.
pub(super) fn inflow(tier: &Tier, elapsed: Period, most: u64) -> u64 {
    let period = tier.refill_period();
    // 64 bits of time and 32 of requests
    let product = u128::from(elapsed.as_nanos()) * u128::from(tier.requests);
    match u64::try_from(product) {
        Ok(product) if product < 1 << (u64::BITS - TOKEN_BITS) => {
            ((product << TOKEN_BITS) / period.as_nanos()).min(most)
        }
        _ => long_inflow(product, period, most),
    }
}

/// Returns the inflow of `product` token nanoseconds, less than 2^96.
#[inline(never)]
fn long_inflow(product: u128, period: Period, most: u64) -> u64 {
    let (tokens, period) = (product << TOKEN_BITS, u128::from(period.as_nanos()));
    // usually the bucket is full again
    if tokens >= u128::from(most) * period {
        return most;
    }
    u64::try_from(tokens / period).unwrap_or(u64::MAX)
}

/// Returns the part of `elapsed` that refill in steps has credited, and the inflow in units of 2^-31 tokens. `most` is
/// 1 to 2^63 - 1. A bucket that was full for a period has no steps: the next ones count from the first hit.
pub(super) fn steps(tier: &Tier, elapsed: Period, most: u64) -> (Period, u64) {
    if elapsed < tier.period {
        return (Period::default(), 0);
    }
    let steps = elapsed.as_nanos() / tier.period.as_nanos();
    let inflow = |steps: u64| steps.saturating_mul(u64::from(tier.requests) * TOKEN).min(most);
    if inflow(steps - 1) == most {
        return (elapsed, most);
    }
    (Period::from_nanos(steps * tier.period.as_nanos()), inflow(steps))
}

/// The most units of 2^-31 tokens that can have flowed in during `elapsed`, whatever rounding and steps do. A part of a
/// period counts as a step, since a step may have been in it.
pub(super) fn most_inflow(tier: &Tier, elapsed: Period, most: u64) -> u64 {
    if elapsed == Period::default() {
        return 0;
    }
    let inflow = if tier.bucket().refill == Refill::Step {
        let steps = elapsed.as_nanos().div_ceil(tier.period.as_nanos());
        steps.saturating_mul(u64::from(tier.requests) * TOKEN)
    } else {
        // its own bound is less than 2^63
        inflow(tier, elapsed, most.min(u64::MAX >> 1)).saturating_add(1)
    };
    inflow.min(most)
}

/// Time until `needed` units of 2^-31 tokens, below 2^63, have flowed in with continuous refill, rounded up.
pub(super) fn time_for(tier: &Tier, needed: u64) -> Period {
    // rounding up twice is rounding up once
    let product =
        (u128::from(needed) * u128::from(tier.refill_period().as_nanos())).div_ceil(u128::from(TOKEN));
    match u64::try_from(product) {
        Ok(product) if tier.requests > 0 => Period::from_nanos(product.div_ceil(tier.requests.into())),
        _ => long_time(product, tier.requests),
    }
}

#[cold]
fn long_time(product: u128, requests: u32) -> Period {
    let nanos = if requests == 0 { u128::MAX } else { product.div_ceil(requests.into()) };
    u64::try_from(nanos).map_or(Period::MAX, Period::from_nanos)
}

/// Time of the steps until `needed` units of 2^-31 tokens have flowed in.
pub(super) fn time_of_steps(tier: &Tier, needed: u64) -> Period {
    if tier.requests == 0 {
        return Period::MAX;
    }
    let steps = needed.div_ceil(u64::from(tier.requests) * TOKEN);
    Period::from_nanos(steps.saturating_mul(tier.period.as_nanos()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of all sizes below 2^`bits`.
    fn sized(bits: u32) -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..=bits, any::<bool>()).prop_map(|(number, bits, is_power)| {
            let most = u64::MAX.checked_shr(u64::BITS - bits).unwrap_or_default();
            if is_power { most - (number & 1).min(most) } else { number & most }
        })
    }

    fn tier(requests: u64, period: u64) -> Tier {
        let requests = u32::try_from(requests).expect("32 bits");
        Tier::fixed_window(requests, Period::from_nanos(period.max(1)))
    }

    /// A limit for which the 64 bits of the fast path are exactly one too few, and its neighbours.
    #[test]
    fn the_inflow_is_exact_where_64_bits_end() {
        let second = 1_000_000_000;
        for elapsed in (1 << 33) - 1..=(1 << 33) + 1 {
            let tokens = u128::from(elapsed) * u128::from(TOKEN) / u128::from(second);
            let inflow = inflow(&tier(1, second), Period::from_nanos(elapsed), u64::MAX >> 1);
            assert_eq!(u128::from(inflow), tokens);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn the_inflow_is_that_of_the_plain_formula(
            requests in sized(32),
            period in sized(64),
            elapsed in sized(64),
            most in sized(63),
        ) {
            let tokens = u128::from(elapsed) * u128::from(requests) * u128::from(TOKEN);
            let plain = (tokens / u128::from(period.max(1))).min(most.into());
            let inflow = inflow(&tier(requests, period), Period::from_nanos(elapsed), most);
            prop_assert_eq!(u128::from(inflow), plain);
        }

        #[test]
        fn the_times_are_those_of_the_plain_formulas(
            requests in sized(32),
            period in sized(64),
            needed in sized(63),
        ) {
            let tier = tier(requests, period);
            let rate = u128::from(requests) * u128::from(TOKEN);
            let time = |nanos: Option<u128>| {
                nanos.and_then(|nanos| u64::try_from(nanos).ok()).map_or(Period::MAX, Period::from_nanos)
            };
            let (needed_128, period) = (u128::from(needed), u128::from(tier.period.as_nanos()));
            let continuous = (rate > 0).then(|| (needed_128 * period).div_ceil(rate));
            prop_assert_eq!(time_for(&tier, needed), time(continuous));
            let steps = (rate > 0).then(|| needed_128.div_ceil(rate) * period);
            prop_assert_eq!(time_of_steps(&tier, needed), time(steps));
        }
    }
}
