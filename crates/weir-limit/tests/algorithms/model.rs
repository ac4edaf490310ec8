//! Compares the algorithms with a slow model that remembers every admitted hit.

use proptest::prelude::*;
use weir_limit::{
    Algorithm, Direction, Hits, OverLimitPolicy, Period, Refill, Tier, Timestamp, algorithm::CounterState,
    decide, decision_from_store,
};

use crate::support::{Log, Rule, START, Try, later, tier, tries};

/// Returns whether a model that remembers every admitted hit would admit `hits` too. `slack` selects the most
/// permissive (true) or the strictest (false) behavior that the algorithm's docs allow.
fn model_admits(tier: &Tier, admitted: &Log, hits: u64, now: Timestamp, slack: bool) -> bool {
    let period = tier.period.as_nanos();
    match tier.algorithm {
        Algorithm::FixedWindow => {
            let window = now.window_end(tier.period);
            let in_window = admitted.iter().filter(|(at, _)| at.window_end(tier.period) == window);
            in_window.map(|(_, hits)| hits).sum::<u64>() + hits <= u64::from(tier.requests)
        }
        Algorithm::SlidingWindow => {
            // a hit counts for one period at least, and for a twelfth (in whole nanoseconds) more at most
            let counts_for = if slack { period } else { period + period.div_ceil(12) };
            let counting = admitted.iter().filter(|(at, _)| now.since(*at).as_nanos() < counts_for);
            counting.map(|(_, hits)| hits).sum::<u64>() + hits <= u64::from(tier.requests)
        }
        Algorithm::TokenBucket(bucket) => {
            // the level in tokens times nanoseconds of the period, which is exact
            let unit = u128::from(period);
            let full = u128::from(bucket.burst) * unit;
            let mut level = full;
            let mut as_of = START;
            let mut refill = |level: &mut u128, at: Timestamp| {
                let elapsed = at.since(as_of).as_nanos();
                let steps = (full - *level).div_ceil(unit * u128::from(tier.requests));
                let credited = match bucket.refill {
                    // the first hit of a bucket that was full for a whole period starts its steps
                    Refill::Step if *level < full && u128::from(elapsed / period) <= steps => {
                        elapsed / period * period
                    }
                    _ => elapsed,
                };
                as_of = as_of.after(Period::from_nanos(credited));
                *level = full.min(*level + u128::from(credited) * u128::from(tier.requests));
            };
            for (at, hits) in admitted {
                refill(&mut level, *at);
                level -= u128::from(*hits) * unit;
            }
            refill(&mut level, now);
            // the tested bucket may lack 2^-31 tokens for each admitted hit
            let rounding = if slack { 0 } else { 1 + ((admitted.len() as u128 * unit) >> 31) };
            level >= u128::from(hits) * unit + rounding
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn agrees_with_a_model_that_remembers_everything(mut tier in tier(), tries in tries(100)) {
        // a strict bucket loses refill time on purpose; another test covers it
        if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
            bucket.strict = false;
        }
        let mut rule = Rule::new(vec![tier.clone()], START);
        let (mut now, mut admitted) = (START, Log::new());
        for Try { later: share, hits } in tries {
            now = later(now, &tier, share);
            let over = rule.take(hits, now).over;
            if over {
                prop_assert!(!model_admits(&tier, &admitted, hits, now, false), "rejected {hits} at {now:?}");
            } else {
                prop_assert!(model_admits(&tier, &admitted, hits, now, true), "admitted {hits} at {now:?}");
                admitted.push((now, hits));
            }
        }
    }

    /// Stores drop counters that are unused or idle.
    #[test]
    fn an_unused_counter_decides_like_a_new_one(tier in tier(), tries in tries(100)) {
        let mut kept = Rule::new(vec![tier.clone()], START);
        let mut dropped = kept.clone();
        let mut now = START;
        for Try { later: share, hits } in tries {
            now = later(now, &tier, share);
            let counter = &mut dropped.counters[0];
            prop_assert!(counter.idle_at() > now || counter.is_unused(&tier, now), "{counter:?}");
            if counter.is_unused(&tier, now) {
                *counter = CounterState::unused(&tier, now);
            }
            prop_assert_eq!(dropped.take(hits, now), kept.take(hits, now));
        }
    }

    /// The answer to a decision that a shared store made is the same as that of a counter in memory.
    #[test]
    fn a_decision_is_the_same_if_a_store_made_it(
        mut tier in tier(),
        tries in tries(60),
        counts in any::<bool>(),
    ) {
        // what a bucket lacked before it lost a fraction of a token is not known
        if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
            bucket.strict = false;
        }
        // a bucket owes one burst at most, so what it lacked before hits that it rejected is not known
        let counts = counts && !matches!(tier.algorithm, Algorithm::TokenBucket(_));
        let policy = if counts { OverLimitPolicy::Count } else { OverLimitPolicy::Ignore };
        let (tiers, mut counters) = ([tier.clone()], [CounterState::unused(&tier, START)]);
        let mut now = START;
        for Try { later: share, hits } in tries {
            now = later(now, &tier, share);
            let made = decide(&tiers, &mut counters, policy, Direction::Take, Hits(hits), now);
            prop_assert_eq!(decision_from_store(&tiers, &counters, policy, made.over, Hits(hits), now), made);
        }
    }
}
