//! Bursts: more hits than the schedule of syncs can keep up with.

use super::LocalCounter;
use crate::limit::{Hits, Period, Timestamp, capacity};

/// The part of the limit by which all instances together may exceed it in a burst: a tenth.
const PART: u64 = 10;

/// A burst is several times as many hits as the demand so far lets expect.
const TIMES_EXPECTED: u64 = 3;

/// The time after the store's last reply from which the demand measured meanwhile is enough to detect the end of a
/// burst.
const SETTLED_AFTER: Period = Period::from_millis(10);

impl LocalCounter {
    /// Returns whether `hits` more would be a burst: unexpectedly many since the store's last reply, and so many that
    /// the instances would exceed the limit by more than a tenth if each of `instances` took as many without knowing of
    /// the others. `round_trip` is the time that the store takes to reply.
    pub(in super::super) fn is_burst(
        &self,
        hits: Hits,
        instances: usize,
        round_trip: Period,
        now: Timestamp,
    ) -> bool {
        let own = self.unacknowledged_hits().saturating_add(hits.0);
        if instances < 2 || own.saturating_mul(PART * instances as u64) <= capacity(&self.target.tiers) {
            return false;
        }
        // the time within which these hits were taken. A reply does not count those that were taken while it was on its
        // way, or had to wait for the reply before it
        let first = self.unacknowledged.all().first().map_or(Timestamp::default(), |delta| delta.at);
        let since = self.heard.last_reply_at.get().map_or(0, |at| now.since(at.max(first)).as_nanos());
        let time = Period::from_nanos(since.saturating_add(2 * round_trip.as_nanos()));
        let expected = self.demand.expected_in(time, now);
        own > expected.saturating_mul(TIMES_EXPECTED)
    }

    /// Returns whether a burst is over: what it left is used up or has been known for a moment. `round_trip` is the
    /// time that the store takes to reply.
    pub(in super::super) fn is_burst_over(&self, round_trip: Period, now: Timestamp) -> bool {
        let settled_after = SETTLED_AFTER.as_nanos().saturating_add(round_trip.as_nanos());
        self.is_settled()
            // the store has counted the hits that were taken before it was asked for a lease
            || (self.unacknowledged_hits() == 0
                && self.heard.last_reply_at.get().is_some_and(|at| now.since(at).as_nanos() > settled_after))
    }
}
