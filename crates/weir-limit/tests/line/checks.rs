//! What a schedule must have kept to, from its log alone.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_limit::{
    Algorithm, Period, Refill, Tier, Timestamp,
    line::{Answer, Entered, Rejection},
};

use super::{
    cases::{Event, Mix},
    world::{GRACE, Limited, World},
};

/// One token in the units of buckets.
const TOKEN: i128 = 1 << 31;

pub(crate) fn check(world: &World<'_>) -> Result<(), TestCaseError> {
    check_order(world)?;
    check_promises(world)?;
    for tier in 0..world.case.tiers.len() {
        check_limit(world, tier)?;
    }
    Ok(())
}

/// A caller that is rejected would have been admitted with the wait that it was told, and not a nanosecond sooner; and
/// who comes back then passes.
pub(crate) fn check_rejection(
    before: &Limited,
    now: Timestamp,
    hits: u64,
    retry_after: Period,
) -> Result<(), TestCaseError> {
    let end = now.after(retry_after);
    // each hit that a bucket takes costs up to a unit of 2^-31 tokens, which the replan in one step does not see; and a
    // full one loses what flows in during the rest of the nanosecond in which it serves a waiter
    let slack = 8 + before.line.waiting() as u64;
    let mut patient = before.clone();
    match patient.enter(now, hits, retry_after) {
        Entered::Waits(position) => {
            let answered = patient.run_until(end.after(GRACE), Some(position));
            let in_time = matches!(answered, Some((Answer::Admitted(at), _))
                if at.as_nanos().abs_diff(end.as_nanos()) <= slack);
            prop_assert!(in_time, "with {retry_after:?}: {answered:?}, expected at {end:?}");
        }
        entered => prop_assert!(false, "with {retry_after:?}: {entered:?}"),
    }
    let sooner = Period::from_nanos(retry_after.as_nanos() - 1);
    let entered = before.clone().enter(now, hits, sooner);
    prop_assert_eq!(entered, Entered::Rejected(Rejection::Timeout { retry_after }));
    let mut later = before.clone();
    later.run_until(end, None);
    prop_assert!(later.ask(end.after(Period::from_nanos(slack)), hits), "comes back after {:?}", retry_after);
    Ok(())
}

/// Waiters are admitted in the order of their arrival.
fn check_order(world: &World<'_>) -> Result<(), TestCaseError> {
    let mut last = Timestamp::default();
    for caller in &world.callers {
        if let Some(Answer::Admitted(at)) = caller.answer {
            prop_assert!(at >= last, "{caller:?} passed others");
            last = at;
        }
    }
    Ok(())
}

/// Whoever is kept is served in time, unless limits or ordinary callers' hits change, and is told at its deadline in
/// any case.
fn check_promises(world: &World<'_>) -> Result<(), TestCaseError> {
    for caller in world.callers.iter().filter(|caller| caller.position.is_some()) {
        let Some(answer) = caller.answer else {
            prop_assert!(caller.has_left, "{:?} was forgotten", caller);
            continue;
        };
        if world.case.mix != Mix::LateTimers {
            prop_assert!(caller.answered_at <= caller.deadline.after(GRACE), "{caller:?} was told late");
        }
        if world.case.mix == Mix::Waiters && !world.is_inexact() {
            prop_assert!(matches!(answer, Answer::Admitted(_)), "{caller:?} was kept");
        }
    }
    Ok(())
}

fn check_limit(world: &World<'_>, index: usize) -> Result<(), TestCaseError> {
    let taken: Vec<(Timestamp, u64)> = world
        .taken
        .iter()
        .filter(|taken| !taken.caller.is_some_and(|caller| world.callers[caller].gave_back))
        .map(|taken| (taken.at, taken.hits))
        .collect();
    let tier = &world.case.tiers[index];
    let forces: Vec<(Timestamp, &Tier)> =
        world.tiers.iter().map(|(since, tiers)| (*since, &tiers[index])).collect();
    match tier.algorithm {
        Algorithm::FixedWindow => check_windows(tier, &forces, &taken),
        Algorithm::SlidingWindow => check_intervals(tier, &forces, &taken),
        Algorithm::TokenBucket(bucket) => {
            // a burst that was lowered and raised again gives the difference again
            let changes = world.case.events.iter().any(|(_, event)| matches!(event, Event::Change { .. }));
            match bucket.refill {
                _ if changes => Ok(()),
                Refill::Step => check_steps(tier, &taken),
                _ => check_bucket(tier, &taken),
            }
        }
    }
}

fn check_windows(
    tier: &Tier,
    forces: &[(Timestamp, &Tier)],
    taken: &[(Timestamp, u64)],
) -> Result<(), TestCaseError> {
    let mut windows: BTreeMap<Timestamp, u64> = BTreeMap::new();
    for (at, hits) in taken {
        *windows.entry(at.window_end(tier.period)).or_default() += hits;
    }
    for (end, hits) in windows {
        let start = end.as_nanos() - tier.period.as_nanos();
        let in_force = forces.iter().enumerate().filter(|(i, (since, _))| {
            *since < end && forces.get(i + 1).is_none_or(|(until, _)| until.as_nanos() >= start)
        });
        let most = in_force.map(|(_, (_, tier))| tier.requests).max().unwrap_or_default();
        prop_assert!(hits <= most.into(), "{hits} of {most} in the window until {end:?}");
    }
    Ok(())
}

fn check_intervals(
    tier: &Tier,
    forces: &[(Timestamp, &Tier)],
    taken: &[(Timestamp, u64)],
) -> Result<(), TestCaseError> {
    let most = u64::from(forces.iter().map(|(_, tier)| tier.requests).max().unwrap_or_default());
    let (mut first, mut sum) = (0, 0);
    for (at, hits) in taken {
        sum += hits;
        while taken[first].0.after(tier.period) <= *at {
            sum -= taken[first].1;
            first += 1;
        }
        prop_assert!(sum <= most, "{sum} of {most} in the interval until {at:?}");
    }
    Ok(())
}

/// The bucket in token nanoseconds, without any rounding.
fn check_bucket(tier: &Tier, taken: &[(Timestamp, u64)]) -> Result<(), TestCaseError> {
    let (period, requests) = (i128::from(tier.period.as_nanos()), i128::from(tier.requests));
    let full = i128::from(tier.capacity()) * period;
    let (mut level, mut last) = (full, Timestamp::default());
    for (at, hits) in taken {
        level =
            full.min(level + i128::from(at.since(last).as_nanos()) * requests) - i128::from(*hits) * period;
        last = *at;
        prop_assert!(level >= 0, "{} token units too many at {at:?}", -level * TOKEN / period);
    }
    Ok(())
}

fn check_steps(tier: &Tier, taken: &[(Timestamp, u64)]) -> Result<(), TestCaseError> {
    for (i, (start, _)) in taken.iter().enumerate() {
        let mut sum = 0;
        for (at, hits) in &taken[i..] {
            sum += hits;
            let steps = at.since(*start).as_nanos() / tier.period.as_nanos() + 1;
            let most = u64::from(tier.capacity()) + u64::from(tier.requests) * steps;
            prop_assert!(sum <= most, "{sum} of {most} until {at:?}");
        }
    }
    Ok(())
}
