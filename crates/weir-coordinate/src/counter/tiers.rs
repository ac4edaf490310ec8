//! Properties of a target's tiers, and hits as they count in them.

use smallvec::SmallVec;

use weir_limit::{
    Algorithm, Decision, Hits, OverLimitPolicy, Period, Tier, Timestamp, algorithm::CounterState,
    decision_from_store,
};

/// One for each tier: most limits have one.
pub(crate) type CounterStates = SmallVec<[CounterState; 1]>;

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

/// How long a grant may be used if no window ends it. A sliding window counts granted hits as if used at the end of it.
/// The estimate of an instance that `is_alone` is exact: the grant only says what another one would see.
pub(super) fn hold(tiers: &[Tier], is_alone: bool) -> Period {
    let holds = tiers.iter().filter_map(|tier| match tier.algorithm {
        Algorithm::FixedWindow => None,
        _ if is_alone => Some(tier.period / 2),
        Algorithm::SlidingWindow => Some(tier.period / 100),
        Algorithm::TokenBucket(_) => Some(tier.period / 20),
    });
    let longest = Period::from_secs(if is_alone { 30 } else { 1 });
    holds.min().unwrap_or_default().clamp(Period::from_millis(1), longest)
}

/// Returns how long no call is sent at most although tokens return to a bucket: two holds.
pub(super) fn longest_pause(tiers: &[Tier]) -> Period {
    hold(tiers, false) * 2
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

/// Returns whether no tier counts hits of `at` at `now`.
pub(super) fn all_ended(tiers: &[Tier], at: Timestamp, now: Timestamp) -> bool {
    tiers.iter().all(|tier| has_ended(tier, at, now))
}

/// Whether it is too late to return hits that were granted at `at`, to be used until `until`: others may have taken the
/// inflow, so that a bucket would exceed its burst. An instance that `is_alone`, whose estimate of a bucket is exact,
/// still has to return those of fixed windows beside it.
pub(super) fn has_flowed_back(
    tiers: &[Tier],
    is_alone: bool,
    at: Timestamp,
    until: Timestamp,
    now: Timestamp,
) -> bool {
    has_bucket(tiers) && now >= at.after(hold(tiers, false)).max(until) && !(is_alone && is_mixed(tiers))
}

/// `hits` must be the last that were counted. Windows that have begun since `at` stay.
pub(super) fn take_off(tiers: &[Tier], states: &mut [CounterState], hits: Hits, at: Timestamp) {
    for (tier, state) in tiers.iter().zip(states) {
        state.put_back(tier, at, at, hits);
    }
}

pub(super) fn positive(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

pub(super) fn negative(hits: u64) -> i64 {
    -positive(hits)
}
