//! The policy of `auto`: `lease` for a counter whose limit is small against the number of instances, and in a burst;
//! otherwise `interval`.
//!
//! A counter changes to `lease` as soon as its limit is too small, and back only when the limit is half as large again
//! as needed, so that the coming and going of an instance does not move it back and forth. For the same reason the
//! number of instances is the largest of the last heartbeats.
//!
//! A burst is more hits than the schedule of syncs can keep up with.

use crate::{
    limit::{Coordination, Hits, Period, Tier, Timestamp, capacity},
    store::coordinated::counter::{LocalCounter, ModeChoice},
};

/// Assumed until the first reply to a heartbeat. Limits that are large for so many instances need not wait for it.
const UNKNOWN_INSTANCES: usize = 100;

/// The part of the limit by which all instances together may exceed it in a burst: a tenth.
const PART: u64 = 10;

/// A burst is several times as many hits as the demand so far lets expect.
const TIMES_EXPECTED: u64 = 3;

/// The time after a reply from which the demand measured meanwhile is enough to detect the end of a burst.
const SETTLED_AFTER: Period = Period::from_millis(10);

/// Why the mode of a counter changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super::super) enum Switch {
    /// To `lease`: the limit is small.
    Small,
    /// To `lease`, until the burst is over.
    Burst,
    /// To `interval`.
    Large,
}

/// For a counter that has no mode yet.
pub(in super::super::super) fn first(tiers: &[Tier], instances: Option<usize>) -> Coordination {
    Coordination::for_limit(capacity(tiers), or_unknown(instances))
}

fn or_unknown(instances: Option<usize>) -> usize {
    instances.unwrap_or(UNKNOWN_INSTANCES)
}

fn next(current: Coordination, tiers: &[Tier], instances: Option<usize>) -> Coordination {
    let capacity = match current {
        // `strict` stands for `lease` where the store does not support that
        Coordination::Lease | Coordination::Strict => capacity(tiers) * 2 / 3,
        _ => capacity(tiers),
    };
    Coordination::for_limit(capacity, or_unknown(instances))
}

// === impl LocalCounter ===

impl LocalCounter {
    /// `taking`: the hits that are asked for, if any. `instances`: the largest number lately, if it is known.
    pub(in super::super::super) fn switch(
        &self,
        taking: Option<Hits>,
        instances: Option<usize>,
        round_trip: Period,
        now: Timestamp,
    ) -> Option<Switch> {
        let ModeChoice { mode, is_in_burst, .. } = self.choice;
        let is_exact = matches!(mode, Coordination::Lease | Coordination::Strict);
        // a burst is no reason to stay
        let current = if is_in_burst { Coordination::Interval } else { mode };
        if next(current, &self.target.tiers, instances) == Coordination::Lease {
            return (!is_exact || is_in_burst).then_some(Switch::Small);
        }
        let is_burst = |hits| self.is_burst(hits, instances, round_trip, now);
        if (is_in_burst || !is_exact) && taking.is_some_and(is_burst) {
            return (!is_in_burst).then_some(Switch::Burst);
        }
        let is_over = !is_in_burst || self.is_settled() || self.is_burst_over(round_trip, now);
        (is_exact && is_over).then_some(Switch::Large)
    }

    /// Returns whether `hits` more would be a burst: unexpectedly many since the last reply, and so many that the
    /// instances would exceed the limit by more than a tenth if each took as many without knowing of the others.
    pub(in super::super) fn is_burst(
        &self,
        hits: Hits,
        instances: Option<usize>,
        round_trip: Period,
        now: Timestamp,
    ) -> bool {
        let own = self.unacknowledged.admitted().saturating_add(hits.0);
        let instances = or_unknown(instances) as u64;
        if instances < 2 || own.saturating_mul(PART * instances) <= capacity(&self.target.tiers) {
            return false;
        }
        // the time within which these hits were taken. A reply does not count those that were taken while it was on its
        // way, or had to wait for the reply before it
        let first = self.unacknowledged.all().first().map_or(Timestamp::default(), |delta| delta.at);
        let last_reply_at = self.heard.last_reply_at.get();
        let since = last_reply_at.map_or(Period::default(), |at| now.since(at.max(first)));
        own > self.demand.expected_in(since + round_trip * 2, now).saturating_mul(TIMES_EXPECTED)
    }

    /// The store has counted the hits from before the lease was requested, and that has been known for a moment.
    fn is_burst_over(&self, round_trip: Period, now: Timestamp) -> bool {
        let last_reply_at = self.heard.last_reply_at.get();
        self.unacknowledged.admitted() == 0
            && last_reply_at.is_some_and(|at| now.since(at) > SETTLED_AFTER + round_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Bucket, Refill};

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
