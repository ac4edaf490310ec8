//! Properties of a target's tiers, and hits as they count in them.

use crate::limit::{
    Algorithm, Decision, Hits, OverLimitPolicy, Period, Tier, Timestamp,
    algorithm::{CountChange, CounterState},
    decision_from_store,
};

/// Returns `number`, or 2^32 - 1 if it is larger.
pub(super) fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the hits that all `tiers` would still admit by their `states`.
pub(super) fn remaining(tiers: &[Tier], states: &[CounterState], now: Timestamp) -> u64 {
    let left = states.iter().zip(tiers).map(|(state, tier)| state.availability(tier, now).remaining.into());
    left.min().unwrap_or_default()
}

/// Returns whether all `tiers` would admit `hits` by their `states`.
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

/// Returns whether some tiers are fixed windows and others are not.
pub(super) fn is_mixed(tiers: &[Tier]) -> bool {
    flows(tiers) && tiers.iter().any(|tier| tier.algorithm == Algorithm::FixedWindow)
}

/// Returns whether a tier is a bucket.
pub(super) fn has_bucket(tiers: &[Tier]) -> bool {
    tiers.iter().any(|tier| matches!(tier.algorithm, Algorithm::TokenBucket(_)))
}

/// Returns whether a tier is a bucket that a rejected request restarts.
pub(super) fn has_strict_bucket(tiers: &[Tier]) -> bool {
    tiers.iter().any(|tier| tier.bucket().strict)
}

/// Returns how long a grant may be used at most if no window ends it, 1 ms to 1 s: a twentieth of the period of a
/// bucket, and a hundredth of that of a sliding window, which counts a granted hit as long as if it was used at the end
/// of this time.
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

/// Returns how long an instance that is alone may use a grant: half of the shortest period, 1 ms to 30 s. Its own
/// estimate is exact, so that the grant only says what another instance would see.
pub(super) fn lone_hold(tiers: &[Tier]) -> Period {
    let flowing = tiers.iter().filter(|tier| tier.algorithm != Algorithm::FixedWindow);
    let shortest = flowing.map(|tier| tier.period.as_nanos()).min().unwrap_or_default();
    Period::from_nanos((shortest / 2).clamp(1_000_000, 30_000_000_000))
}

/// Returns whether hits of the two instants are in the same windows of all tiers.
pub(super) fn same_windows(tiers: &[Tier], a: Timestamp, b: Timestamp) -> bool {
    tiers.iter().all(|tier| {
        tier.algorithm != Algorithm::FixedWindow || {
            let end = a.window_end(tier.period);
            b < end && end.since(b) <= tier.period
        }
    })
}

/// Returns whether hits that were counted at `at` no longer count at `now`.
pub(super) fn has_ended(tier: &Tier, at: Timestamp, now: Timestamp) -> bool {
    match tier.algorithm {
        Algorithm::FixedWindow => at.window_end(tier.period) <= now,
        Algorithm::SlidingWindow => at.after(tier.period) <= now,
        // a full bucket has forgotten all hits, but only its state shows when it is full
        Algorithm::TokenBucket(_) => false,
    }
}

/// Returns whether hits that were granted at `at`, to be used until `until`, must no longer be returned to a bucket at
/// `now`. Other instances may have taken the later inflow by then, so the returned tokens would let the bucket exceed
/// its burst.
pub(super) fn has_flowed_back(tiers: &[Tier], at: Timestamp, until: Timestamp, now: Timestamp) -> bool {
    has_bucket(tiers) && now >= at.after(hold(tiers)).max(until)
}

/// Takes `hits` that were counted last, at `at`, from `states`, but not from windows that have begun since.
pub(super) fn take_off(tiers: &[Tier], states: &mut [CounterState], hits: Hits, at: Timestamp) {
    for (tier, state) in tiers.iter().zip(states) {
        match state {
            CounterState::FixedWindow(_) => state.add(tier, at, CountChange::of(negative(hits.0)), at),
            _ => state.release(tier, at, at, hits),
        }
    }
}

/// Puts `hits` back in `states` that were given back at `at`.
pub(super) fn put_back(tiers: &[Tier], states: &mut [CounterState], hits: Hits, at: Timestamp) {
    for (tier, state) in tiers.iter().zip(states) {
        state.add(tier, at, CountChange::of(positive(hits.0)), at);
    }
}

/// Converts hits that are taken to the store's signed count.
pub(super) fn positive(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

/// Converts hits that are given back to the store's signed count.
pub(super) fn negative(hits: u64) -> i64 {
    -positive(hits)
}
