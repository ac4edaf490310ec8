//! Adds what was counted before the disk was read to what it had.

use super::record::CounterKind;
use weir_limit::{
    Hits, Period, Refill, Tier, Timestamp,
    algorithm::{CountChange, CounterState},
    request_bucket::merge_buckets,
};

const UNITS_PER_TOKEN: u64 = 1 << 31;

/// Adds the hits of `local`, which began as an unused state, to `disk`, at their own instants. Tokens that have flowed
/// into `local` since its first hit have flowed into both.
pub(super) fn merge(
    disk: CounterState,
    local: &CounterState,
    kind: &CounterKind,
    now: Timestamp,
) -> CounterState {
    match kind {
        CounterKind::Tier(tier) => merge_tier(disk, local, tier, now),
        CounterKind::Bucket(kind) => merge_buckets(disk, local, kind),
    }
}

fn merge_tier(mut disk: CounterState, local: &CounterState, tier: &Tier, now: Timestamp) -> CounterState {
    let mut add = |at: Timestamp, hits: u64| {
        let change = CountChange::of(i64::try_from(hits).unwrap_or(i64::MAX));
        disk.add(tier, at, change, now);
    };
    match local {
        CounterState::FixedWindow(window) => {
            let in_window = Timestamp::from_nanos(window.end().as_nanos().saturating_sub(1));
            add(in_window, local.used().0);
        }
        CounterState::TokenBucket(bucket, _) if local.used() > Hits(0) => {
            // the steps of the two buckets are at different times: hits that one of them has refilled already are not
            // taken back, and none that has not is refilled by an earlier step of the other one
            let at = if tier.bucket().refill == Refill::Step { now } else { bucket.as_of() };
            // part of a token counts as a whole one, so that it is not admitted twice
            add(at, bucket.taken().div_ceil(UNITS_PER_TOKEN));
        }
        CounterState::SlidingWindow(..) | CounterState::OneSpan { .. } => {
            let window = local.sliding_window().unwrap_or_default();
            window.spans().iter().for_each(|span| add(span.last, span.hits.into()));
        }
        // a full bucket, and those that have no tier
        CounterState::TokenBucket(..)
        | CounterState::Steps(..)
        | CounterState::Session(..)
        | CounterState::Paced(..) => {}
    }
    disk
}

/// For a rejection that is made without the disk: nobody knows when the disk is there again.
pub(super) const RETRY: Period = Period::from_secs(1);

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use weir_limit::{Algorithm, Bucket};

    fn tiers() -> [Tier; 4] {
        let bucket = |refill| Algorithm::TokenBucket(Bucket { burst: 50, refill, strict: false });
        let (continuous, step) = (bucket(Refill::Continuous), bucket(Refill::Step));
        [Algorithm::FixedWindow, Algorithm::SlidingWindow, continuous, step].map(|algorithm| Tier {
            requests: 50,
            period: Period::from_secs(60),
            algorithm,
        })
    }

    proptest! {
        /// No more is left than if one place had counted all, except for tokens that have flowed into both buckets.
        #[test]
        fn merged_states_count_the_hits_of_both(
            earlier in vec((0..30_u64, 0..9_u64), 0..6),
            later in vec((0..30_u64, 0..9_u64), 0..6),
            wait in 0..90_u64,
        ) {
            for tier in tiers() {
                let mut now = Timestamp::from_secs(6_000);
                let unused = CounterState::unused(&tier, now);
                let (mut whole, mut disk, mut local) = (unused.clone(), unused.clone(), unused);
                let (mut all, mut first_local) = (Vec::new(), None);
                for (is_later, (step, hits)) in
                    earlier.iter().map(|hit| (false, hit)).chain(later.iter().map(|hit| (true, hit)))
                {
                    now = now.after(Period::from_secs(*step));
                    if !whole.probe(&tier, now, Hits(*hits)).fits {
                        continue;
                    }
                    whole.take(&tier, now, Hits(*hits));
                    all.push((now, *hits));
                    if is_later && *hits > 0 {
                        first_local.get_or_insert(now);
                    }
                    if is_later { &mut local } else { &mut disk }.take(&tier, now, Hits(*hits));
                }
                let (merged, merged_at) = (merge_tier(disk.clone(), &local, &tier, now), now);
                let left = |state: &CounterState, now| u64::from(state.availability(&tier, now).remaining);
                let most = |now: Timestamp| match tier.algorithm {
                    // one window may count hits for longer than a period, together with later ones
                    Algorithm::SlidingWindow => {
                        let counting = all.iter().filter(|(at, _)| at.after(tier.period) > now);
                        50 - counting.map(|(_, hits)| hits).sum::<u64>()
                    }
                    // the steps of each bucket are counted from its own first hit
                    _ if tier.bucket().refill == Refill::Step => left(&disk, now).min(left(&local, now)),
                    Algorithm::TokenBucket(_) => {
                        let apart = first_local.map_or(0, |first| merged_at.since(first).as_nanos());
                        left(&whole, now) + (apart / 1_000_000 * 50).div_ceil(60_000)
                    }
                    Algorithm::FixedWindow => left(&whole, now),
                };
                prop_assert!(left(&merged, now) <= most(now), "{tier}");
                // at most one token that had flowed in partly in each of the two; steps refill none of what is added,
                // and windows may count hits of other spans together
                let is_inexact =
                    tier.bucket().refill == Refill::Step || tier.algorithm == Algorithm::SlidingWindow;
                prop_assert!(is_inexact || left(&merged, now) + 2 >= left(&whole, now), "{tier}");
                let then = now.after(Period::from_secs(wait));
                let is_stepped = tier.bucket().refill == Refill::Step;
                prop_assert!(is_stepped || left(&merged, then) <= most(then), "{tier} later");
            }
        }
    }
}
