//! The policy of `auto`: `lease` for a counter whose limit is small against the number of instances, and in a burst;
//! otherwise `interval`.
//!
//! A counter changes to `lease` as soon as its limit is too small, and back only when the limit is half as large again
//! as needed, so that the coming and going of an instance does not move it back and forth. For the same reason the
//! number of instances is the largest of the last heartbeats.
//!
//! A burst is more hits than the schedule of syncs can keep up with.

use super::View;
use crate::limit::{Coordination, Hits, Period, Tier, Timestamp, capacity};

/// Assumed until the first reply to a heartbeat. Limits that are large for so many instances need not wait for it.
const UNKNOWN_INSTANCES: usize = 100;

/// The part of the limit by which all instances together may exceed it in a burst: a tenth.
const PART: u64 = 10;

/// A burst is several times as many hits as the demand so far lets expect.
const TIMES_EXPECTED: u64 = 3;

/// The time after a reply from which the demand measured meanwhile is enough to detect the end of a burst.
const SETTLED_AFTER: Period = Period::from_millis(10);

#[derive(Debug)]
pub(in super::super::super) struct ModeChoice {
    /// The requested one, or the nearest that the store supports for the target.
    pub(in super::super::super) mode: Coordination,
    /// Whether `auto` has chosen `lease` because of a burst.
    pub(in super::super::super) is_in_burst: bool,
    /// None until `mode` has been chosen for the current target.
    pub(in super::super::super) requested_mode: Option<Coordination>,
}

#[derive(Clone, Copy, Debug)]
pub(in super::super::super) struct AutoPolicy<'a> {
    view: View<'a>,
    /// The largest number lately, if it is known.
    instances: Option<usize>,
    round_trip: Period,
}

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
    let (instances, capacity) = (or_unknown(instances), capacity(tiers));
    match current {
        // `strict` stands for `lease` where the store does not support that
        Coordination::Lease | Coordination::Strict => Coordination::for_limit(capacity * 2 / 3, instances),
        _ => Coordination::for_limit(capacity, instances),
    }
}

// === impl AutoPolicy ===

impl<'a> AutoPolicy<'a> {
    pub(in super::super) const fn new(view: View<'a>, instances: Option<usize>, round_trip: Period) -> Self {
        Self { view, instances, round_trip }
    }

    /// `taking`: the hits that are asked for, if any. `is_settled`: whether the store has all hits counted here.
    pub(in super::super::super) fn switch(
        &self,
        choice: &ModeChoice,
        taking: Option<Hits>,
        is_settled: impl FnOnce() -> bool,
        now: Timestamp,
    ) -> Option<Switch> {
        let is_exact = matches!(choice.mode, Coordination::Lease | Coordination::Strict);
        // a burst is no reason to stay
        let current = if choice.is_in_burst { Coordination::Interval } else { choice.mode };
        if next(current, &self.view.target.tiers, self.instances) == Coordination::Lease {
            return (!is_exact || choice.is_in_burst).then_some(Switch::Small);
        }
        let is_inexact = choice.is_in_burst || !is_exact;
        if is_inexact && taking.is_some_and(|hits| self.is_burst(hits, now)) {
            return (!choice.is_in_burst).then_some(Switch::Burst);
        }
        let is_over = !choice.is_in_burst || is_settled() || self.is_burst_over(now);
        (is_exact && is_over).then_some(Switch::Large)
    }

    /// Returns whether `hits` more would be a burst: unexpectedly many since the last reply, and so many that the
    /// instances would exceed the limit by more than a tenth if each took as many without knowing of the others.
    pub(in super::super) fn is_burst(&self, hits: Hits, now: Timestamp) -> bool {
        let View { target, unacknowledged, last_reply_at, demand, .. } = self.view;
        let own = unacknowledged.admitted().saturating_add(hits.0);
        let instances = or_unknown(self.instances) as u64;
        if instances < 2 || own.saturating_mul(PART * instances) <= capacity(&target.tiers) {
            return false;
        }
        // the time within which these hits were taken. A reply does not count those that were taken while it was on its
        // way, or had to wait for the reply before it
        let first = unacknowledged.all().first().map_or(Timestamp::default(), |delta| delta.at);
        let since = last_reply_at.map_or(0, |at| now.since(at.max(first)).as_nanos());
        let time = Period::from_nanos(since.saturating_add(2 * self.round_trip.as_nanos()));
        own > demand.expected_in(time, now).saturating_mul(TIMES_EXPECTED)
    }

    /// The store has counted the hits from before the lease was requested, and that has been known for a moment.
    pub(in super::super) fn is_burst_over(&self, now: Timestamp) -> bool {
        let settled_after = SETTLED_AFTER.as_nanos().saturating_add(self.round_trip.as_nanos());
        self.view.unacknowledged.admitted() == 0
            && self.view.last_reply_at.is_some_and(|at| now.since(at).as_nanos() > settled_after)
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
