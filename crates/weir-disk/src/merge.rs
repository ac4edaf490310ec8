//! Adds what was counted before the disk was read to what it had.

use super::record::CounterKind;
use weir_limit::{Period, Timestamp, algorithm::CounterState, request_bucket::merge_buckets};

/// Adds the hits of `local`, which began as an unused state, to `disk`.
pub(super) fn merge(
    mut disk: CounterState,
    local: &CounterState,
    kind: &CounterKind,
    now: Timestamp,
) -> CounterState {
    match kind {
        CounterKind::Tier(tier) => {
            disk.merge(local, tier, now);
            disk
        }
        CounterKind::Bucket(kind) => merge_buckets(disk, local, kind),
    }
}

/// For a rejection that is made without the disk: nobody knows when the disk is there again.
pub(super) const RETRY: Period = Period::from_secs(1);

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use weir_limit::{Bucket, Hits, Refill, Tier};

    fn tiers() -> [Tier; 4] {
        let (requests, period) = (50, Period::from_secs(60));
        let bucket = |refill| Tier::token_bucket(requests, period, Bucket { refill, ..Bucket::of(50) });
        let windows = [Tier::fixed_window, Tier::sliding_window].map(|tier| tier(requests, period));
        let [fixed, sliding] = windows;
        [fixed, sliding, bucket(Refill::Continuous), bucket(Refill::Step)]
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
                let kind = CounterKind::Tier(tier.clone());
                let (merged, merged_at) = (merge(disk.clone(), &local, &kind, now), now);
                let left = |state: &CounterState, now| u64::from(state.availability(&tier, now).remaining);
                let is_stepped = tier.bucket().refill == Refill::Step;
                let is_sliding = !tier.has_windows() && !tier.refills();
                let most = |now: Timestamp| {
                    if is_sliding {
                        // one window may count hits for longer than a period, together with later ones
                        let counting = all.iter().filter(|(at, _)| at.after(tier.period) > now);
                        50 - counting.map(|(_, hits)| hits).sum::<u64>()
                    } else if is_stepped {
                        // the steps of each bucket are counted from its own first hit
                        left(&disk, now).min(left(&local, now))
                    } else if tier.refills() {
                        let apart = first_local.map_or(0, |first| merged_at.since(first).as_nanos());
                        left(&whole, now) + (apart / 1_000_000 * 50).div_ceil(60_000)
                    } else {
                        left(&whole, now)
                    }
                };
                prop_assert!(left(&merged, now) <= most(now), "{tier}");
                // at most one token that had flowed in partly in each of the two; steps refill none of what is added,
                // and windows may count hits of other spans together
                prop_assert!(is_stepped || is_sliding || left(&merged, now) + 2 >= left(&whole, now), "{tier}");
                let then = now.after(Period::from_secs(wait));
                prop_assert!(is_stepped || left(&merged, then) <= most(then), "{tier} later");
            }
        }
    }
}
