//! The choice of `auto`: `lease` for a counter whose limit is small against the number of instances, otherwise
//! `interval`.
//!
//! A counter changes to `lease` as soon as its limit is too small, and back only when the limit is half as large again
//! as needed, so that the coming and going of an instance does not move it back and forth. For the same reason the
//! number of instances is the largest of the last heartbeats.

use crate::limit::{Coordination, Tier, capacity};

/// The number of instances that is assumed until the first heartbeat is replied to. Limits that are large for so many
/// need not wait for it.
const UNKNOWN_INSTANCES: usize = 100;

/// Returns the mode for a counter of `tiers` that has none yet. `instances` is none if their number is not known.
pub(super) fn first(tiers: &[Tier], instances: Option<usize>) -> Coordination {
    Coordination::for_limit(capacity(tiers), or_unknown(instances))
}

/// Returns the number of instances, or as many as are assumed if it is not known.
pub(super) fn or_unknown(instances: Option<usize>) -> usize {
    instances.unwrap_or(UNKNOWN_INSTANCES)
}

/// Returns the mode for a counter of `tiers` that is in mode `current`.
pub(super) fn next(current: Coordination, tiers: &[Tier], instances: Option<usize>) -> Coordination {
    let (instances, capacity) = (or_unknown(instances), capacity(tiers));
    match current {
        // `strict` stands for `lease` where the store does not support that
        Coordination::Lease | Coordination::Strict => Coordination::for_limit(capacity * 2 / 3, instances),
        _ => Coordination::for_limit(capacity, instances),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Bucket, Period, Refill};

    fn tier(requests: u32) -> Tier {
        Tier { requests, period: Period::from_secs(60), algorithm: Algorithm::FixedWindow }
    }

    #[test]
    fn the_smallest_capacity_decides() {
        let bucket = Bucket { burst: 99, refill: Refill::Continuous, strict: false };
        let small = Tier { algorithm: Algorithm::TokenBucket(bucket), ..tier(1_000) };
        assert_eq!(first(&[tier(100)], Some(2)), Coordination::Interval);
        assert_eq!(first(&[tier(99)], Some(2)), Coordination::Lease);
        assert_eq!(first(&[tier(1_000), small], Some(2)), Coordination::Lease);
    }

    #[test]
    fn a_counter_becomes_exact_at_once_and_stays_so_for_a_while() {
        let limit = [tier(100)];
        let mut mode = first(&limit, Some(2));
        let mut follow = |instances| {
            mode = next(mode, &limit, Some(instances));
            mode
        };
        assert_eq!(follow(3), Coordination::Lease);
        assert_eq!(follow(2), Coordination::Lease, "two instances alone would not need it");
        assert_eq!(follow(1), Coordination::Interval);
        assert_eq!(follow(2), Coordination::Interval);
    }

    #[test]
    fn an_unknown_number_of_instances_counts_as_many() {
        assert_eq!(first(&[tier(4_999)], None), Coordination::Lease);
        assert_eq!(first(&[tier(5_000)], None), Coordination::Interval);
        assert_eq!(next(Coordination::Interval, &[tier(4_999)], None), Coordination::Lease);
    }
}
