//! The policy of `auto`: `lease` for a counter whose limit is small against the number of instances, and in a burst;
//! otherwise `interval`.
//!
//! A counter changes to `lease` as soon as its limit is too small, and back only when the limit is half as large again
//! as needed, so that the coming and going of an instance does not move it back and forth. For the same reason the
//! number of instances falls later than it rises.
//!
//! A burst is more hits than the schedule of syncs can keep up with.

use super::{LocalCounter, ModeChoice};
use weir_limit::{Coordination, Hits, Period, Tier, Timestamp, capacity, part::UNKNOWN_INSTANCES};

/// The part of the limit by which all instances together may exceed it in a burst: a tenth.
const PART: u64 = 10;

/// A burst is several times as many hits as the demand so far lets expect.
const TIMES_EXPECTED: u64 = 3;

/// The time after a reply from which the demand measured meanwhile is enough to detect the end of a burst.
const SETTLED_AFTER: Period = Period::from_millis(10);

/// Why the mode of a counter changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// To `lease`: the limit is small.
    Small,
    /// To `lease`, until the burst is over.
    Burst,
    /// To `interval`.
    Large,
}

/// `leases`: it is that of a counter that leases already.
pub(crate) fn wanted(tiers: &[Tier], leases: bool, instances: Option<usize>) -> Coordination {
    let capacity = if leases { capacity(tiers) * 2 / 3 } else { capacity(tiers) };
    Coordination::for_limit(capacity, instances.unwrap_or(UNKNOWN_INSTANCES.get().into()))
}

// === impl Switch ===

impl Switch {
    /// `taking`: the hits that are asked for, if any. `instances`: the largest number lately, if it is known.
    pub(crate) fn of(
        counter: &LocalCounter,
        taking: Option<Hits>,
        instances: Option<usize>,
        round_trip: Period,
        now: Timestamp,
    ) -> Option<Self> {
        let ModeChoice { mode, is_in_burst, .. } = counter.choice;
        // `strict` stands for `lease` where the store does not support that
        let is_exact = matches!(mode, Coordination::Lease | Coordination::Strict);
        // a burst is no reason to stay
        if wanted(&counter.target.tiers, is_exact && !is_in_burst, instances) == Coordination::Lease {
            return (!is_exact || is_in_burst).then_some(Self::Small);
        }
        let is_burst = |hits| is_burst(counter, hits, instances, round_trip, now);
        if (is_in_burst || !is_exact) && taking.is_some_and(is_burst) {
            return (!is_in_burst).then_some(Self::Burst);
        }
        // the store has counted the hits from before the lease was requested, and that has been known for a moment
        let is_known = |at| now.since(at) > SETTLED_AFTER + round_trip;
        let is_counted =
            counter.ledger.admitted() == 0 && counter.heard.last_reply_at().is_some_and(is_known);
        (is_exact && (!is_in_burst || is_counted)).then_some(Self::Large)
    }
}

/// Returns whether `hits` more would be a burst: unexpectedly many since the last reply, and so many that the instances
/// would exceed the limit by more than a tenth if each took as many without knowing of the others.
pub(super) fn is_burst(
    counter: &LocalCounter,
    hits: Hits,
    instances: Option<usize>,
    round_trip: Period,
    now: Timestamp,
) -> bool {
    let own = counter.ledger.admitted().saturating_add(hits.0);
    let instances = instances.unwrap_or(UNKNOWN_INSTANCES.get().into()) as u64;
    if instances < 2 || own.saturating_mul(PART * instances) <= capacity(&counter.target.tiers) {
        return false;
    }
    // the time within which these hits were taken. A reply does not count those that were taken while it was on its way,
    // or had to wait for the reply before it
    let first = counter.ledger.unacknowledged().first().map_or(Timestamp::default(), |delta| delta.at);
    let last_reply_at = counter.heard.last_reply_at();
    let since = last_reply_at.map_or(Period::default(), |at| now.since(at.max(first)));
    own > counter.demand.in_the_next(since + round_trip * 2, now).saturating_mul(TIMES_EXPECTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{Algorithm, Bucket, Refill};

    fn tier(requests: u32) -> Tier {
        Tier { requests, period: Period::from_secs(60), algorithm: Algorithm::FixedWindow }
    }

    #[test]
    fn the_smallest_capacity_decides() {
        let bucket = Bucket { burst: 99, refill: Refill::Continuous, strict: false };
        let small = Tier { algorithm: Algorithm::TokenBucket(bucket), ..tier(1_000) };
        assert_eq!(wanted(&[tier(100)], false, Some(2)), Coordination::Interval);
        assert_eq!(wanted(&[tier(99)], false, Some(2)), Coordination::Lease);
        assert_eq!(wanted(&[tier(1_000), small], false, Some(2)), Coordination::Lease);
    }

    #[test]
    fn a_counter_becomes_exact_at_once_and_stays_so_for_a_while() {
        let limit = [tier(100)];
        let mut mode = wanted(&limit, false, Some(2));
        let mut follow = |instances| {
            mode = wanted(&limit, mode == Coordination::Lease, Some(instances));
            mode
        };
        assert_eq!(follow(3), Coordination::Lease);
        assert_eq!(follow(2), Coordination::Lease, "two instances alone would not need it");
        assert_eq!(follow(1), Coordination::Interval);
        assert_eq!(follow(2), Coordination::Interval);
    }

    #[test]
    fn an_unknown_number_of_instances_counts_as_many() {
        assert_eq!(wanted(&[tier(4_999)], false, None), Coordination::Lease);
        assert_eq!(wanted(&[tier(5_000)], false, None), Coordination::Interval);
    }
}
