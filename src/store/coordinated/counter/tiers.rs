//! Properties of a target's tiers, and hits as they count in them.

use crate::limit::{
    Algorithm, Decision, Hits, OverLimitPolicy, Period, Tier, Timestamp,
    algorithm::{CountChange, CounterState},
    decision_from_store,
};

pub(super) fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(super) fn remaining(tiers: &[Tier], states: &[CounterState], now: Timestamp) -> u64 {
    let left = states.iter().zip(tiers).map(|(state, tier)| state.availability(tier, now).remaining.into());
    left.min().unwrap_or_default()
}

#[inline]
pub(super) fn fits(tiers: &[Tier], states: &[CounterState], hits: Hits, now: Timestamp) -> bool {
    tiers.iter().zip(states).all(|(tier, state)| state.probe(tier, now, hits).fits)
}

/// Returns how `states` stand; over, if `hits` do not fit.
pub(super) fn look(tiers: &[Tier], states: &[CounterState], hits: Hits, now: Timestamp) -> Decision {
    let over = !fits(tiers, states, hits, now);
    let hits = if over { hits } else { Hits(0) };
    decision_from_store(tiers, states, OverLimitPolicy::Ignore, over, hits, now)
}

/// Returns whether hits become available again gradually, rather than with the next window.
pub(super) fn flows(tiers: &[Tier]) -> bool {
    tiers.iter().any(|tier| tier.algorithm != Algorithm::FixedWindow)
}

pub(super) fn is_mixed(tiers: &[Tier]) -> bool {
    flows(tiers) && tiers.iter().any(|tier| tier.algorithm == Algorithm::FixedWindow)
}

pub(super) fn has_bucket(tiers: &[Tier]) -> bool {
    tiers.iter().any(|tier| matches!(tier.algorithm, Algorithm::TokenBucket(_)))
}

/// A rejected request restarts the refill of such a bucket.
pub(super) fn has_strict_bucket(tiers: &[Tier]) -> bool {
    tiers.iter().any(|tier| tier.bucket().strict)
}

/// How long a grant may be used if no window ends it. A sliding window counts granted hits as if used at the end of it.
pub(super) fn hold(tiers: &[Tier]) -> Period {
    let nanos = tiers.iter().filter_map(|tier| match tier.algorithm {
        Algorithm::FixedWindow => None,
        Algorithm::SlidingWindow => Some(tier.period.as_nanos() / 100),
        Algorithm::TokenBucket(_) => Some(tier.period.as_nanos() / 20),
    });
    Period::from_nanos(nanos.min().unwrap_or_default().clamp(1_000_000, 1_000_000_000))
}

/// Returns how long no call is sent at most although tokens return to a bucket: two holds.
pub(super) fn longest_pause(tiers: &[Tier]) -> Period {
    Period::from_nanos(2 * hold(tiers).as_nanos())
}

/// How long a lone instance may use a grant. Its estimate is exact: the grant only says what another one would see.
pub(super) fn lone_hold(tiers: &[Tier]) -> Period {
    let flowing = tiers.iter().filter(|tier| tier.algorithm != Algorithm::FixedWindow);
    let shortest = flowing.map(|tier| tier.period.as_nanos()).min().unwrap_or_default();
    Period::from_nanos((shortest / 2).clamp(1_000_000, 30_000_000_000))
}

pub(super) fn same_windows(tiers: &[Tier], a: Timestamp, b: Timestamp) -> bool {
    tiers.iter().all(|tier| {
        tier.algorithm != Algorithm::FixedWindow || {
            let end = a.window_end(tier.period);
            b < end && end.since(b) <= tier.period
        }
    })
}

pub(super) fn has_ended(tier: &Tier, at: Timestamp, now: Timestamp) -> bool {
    match tier.algorithm {
        Algorithm::FixedWindow => at.window_end(tier.period) <= now,
        Algorithm::SlidingWindow => at.after(tier.period) <= now,
        // a full bucket has forgotten all hits, but only its state shows when it is full
        Algorithm::TokenBucket(_) => false,
    }
}

/// Whether it is too late for a return: others may have taken the inflow, so that a bucket would exceed its burst.
pub(super) fn has_flowed_back(tiers: &[Tier], at: Timestamp, until: Timestamp, now: Timestamp) -> bool {
    has_bucket(tiers) && now >= at.after(hold(tiers)).max(until)
}

/// `hits` must be the last that were counted. Windows that have begun since `at` stay.
pub(super) fn take_off(tiers: &[Tier], states: &mut [CounterState], hits: Hits, at: Timestamp) {
    for (tier, state) in tiers.iter().zip(states) {
        match state {
            CounterState::FixedWindow(_) => state.add(tier, at, CountChange::of(negative(hits.0)), at),
            _ => state.release(tier, at, at, hits),
        }
    }
}

/// Undoes a return of `hits` at `at`.
pub(super) fn put_back(tiers: &[Tier], states: &mut [CounterState], hits: Hits, at: Timestamp) {
    for (tier, state) in tiers.iter().zip(states) {
        state.add(tier, at, CountChange::of(positive(hits.0)), at);
    }
}

pub(super) fn positive(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

pub(super) fn negative(hits: u64) -> i64 {
    -positive(hits)
}
