//! The policy of `auto`: `lease` for a counter whose limit is small against the number of instances, and in a burst;
//! otherwise `interval`.
//!
//! A counter changes to `lease` as soon as its limit is too small, and back only when the limit is half as large again
//! as needed, so that the coming and going of an instance does not move it back and forth. For the same reason the
//! number of instances falls later than it rises.
//!
//! A burst is more hits than the schedule of syncs can keep up with.

use super::{LocalCounter, ModeChoice};
use weir_limit::{Coordination, Hits, Period, Timestamp, capacity};

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

// === impl Switch ===

impl Switch {
    /// `taking`: the hits that are asked for, if any. `instances`: the largest number lately.
    pub(crate) fn of(
        counter: &LocalCounter,
        taking: Option<Hits>,
        instances: usize,
        round_trip: Period,
        now: Timestamp,
    ) -> Option<Self> {
        let ModeChoice { mode, is_in_burst, .. } = counter.choice;
        // `strict` stands for `lease` where the store does not support that
        let is_exact = mode.is_exact();
        // a burst is no reason to stay
        let stays = is_exact && !is_in_burst;
        let capacity = capacity(&counter.target.tiers);
        let small = if stays { capacity * 2 / 3 } else { capacity };
        if Coordination::for_limit(small, instances).leases() {
            return (!is_exact || is_in_burst).then_some(Self::Small);
        }
        let is_burst = |hits| is_burst(counter, hits, instances, round_trip, now);
        if (is_in_burst || !is_exact) && taking.is_some_and(is_burst) {
            return (!is_in_burst).then_some(Self::Burst);
        }
        // the store has counted the hits from before the lease was requested, and that has been known for a moment
        let is_known = |at| now.since(at) > SETTLED_AFTER + round_trip;
        let is_counted =
            counter.ledger.admitted() == 0 && counter.last_reply.last_reply_at().is_some_and(is_known);
        (is_exact && (!is_in_burst || is_counted)).then_some(Self::Large)
    }
}

/// Returns whether `hits` more would be a burst: unexpectedly many since the last reply, and so many that the instances
/// would exceed the limit by more than a tenth if each took as many without knowing of the others.
pub(super) fn is_burst(
    counter: &LocalCounter,
    hits: Hits,
    instances: usize,
    round_trip: Period,
    now: Timestamp,
) -> bool {
    let own = counter.ledger.admitted().saturating_add(hits.0);
    let instances = instances as u64;
    if instances < 2 || own.saturating_mul(PART * instances) <= capacity(&counter.target.tiers) {
        return false;
    }
    // the time within which these hits were taken. A reply does not count those that were taken while it was on its way,
    // or had to wait for the reply before it
    let first = counter.ledger.unacknowledged().first().map_or(Timestamp::default(), |delta| delta.at);
    let last_reply_at = counter.last_reply.last_reply_at();
    let since = last_reply_at.map_or(Period::default(), |at| now.since(at.max(first)));
    own > counter.demand.in_the_next(since + round_trip * 2, now).saturating_mul(TIMES_EXPECTED)
}
