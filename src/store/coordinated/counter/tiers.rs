//! What the algorithms of a target's tiers have to say about time.

use crate::limit::{Algorithm, Period, Tier, Timestamp};

/// The most that all tiers admit at once.
pub(super) fn capacity(tiers: &[Tier]) -> u64 {
    tiers.iter().map(|tier| tier.capacity().into()).min().unwrap_or_default()
}

/// Whether what is used comes back little by little, and not with the next window.
pub(super) fn flows(tiers: &[Tier]) -> bool {
    tiers.iter().any(|tier| tier.algorithm != Algorithm::FixedWindow)
}

/// How long a grant may be used where no window ends it: a twentieth of the shortest period, for a sliding window loses as
/// much of its limit, and a bucket admits that much of its rate more.
pub(super) fn hold(tiers: &[Tier]) -> Period {
    let shortest =
        tiers.iter().filter(|tier| tier.algorithm != Algorithm::FixedWindow).map(|tier| tier.period).min();
    let nanos = shortest.map_or(0, |period| period.as_nanos() / 20);
    Period::from_nanos(nanos.clamp(1_000_000, 1_000_000_000))
}

/// Whether hits of two instants are in the same windows of all tiers.
pub(super) fn same_windows(tiers: &[Tier], a: Timestamp, b: Timestamp) -> bool {
    tiers.iter().all(|tier| {
        tier.algorithm != Algorithm::FixedWindow || a.window_end(tier.period) == b.window_end(tier.period)
    })
}

/// Whether what was counted at `at` means nothing any more at `now`.
pub(super) fn has_ended(tier: &Tier, at: Timestamp, now: Timestamp) -> bool {
    match tier.algorithm {
        Algorithm::FixedWindow => at.window_end(tier.period) <= now,
        Algorithm::SlidingWindow => at.after(tier.period) <= now,
        // a bucket that is full again has forgotten everything, but only it can tell when that is
        Algorithm::TokenBucket(_) => false,
    }
}

/// Whether what was granted at `at` must not go back to a bucket any more at `now`. Others may have emptied the bucket again
/// meanwhile, of what has flowed in since: with tokens that come back it would give more than its burst.
pub(super) fn has_flowed_back(tiers: &[Tier], at: Timestamp, now: Timestamp) -> bool {
    let bucket = tiers.iter().any(|tier| matches!(tier.algorithm, Algorithm::TokenBucket(_)));
    bucket && now >= at.after(hold(tiers))
}
