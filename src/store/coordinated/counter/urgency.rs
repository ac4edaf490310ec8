//! How soon the pending hits have to be sent.

use super::{LocalCounter, place::Urgency, schedule::SLOW_HITS, tiers::saturated};
use crate::limit::{Coordination, Period, Timestamp};

/// The part of the remaining hits that all instances may take before the next reply while a flush waits for a batch.
const NEAR: u64 = 16;

/// The same, while this instance does not know the others' rate: after a quiet time, each of them may receive a burst.
const NEAR_UNKNOWN: u64 = 256;

/// The part that they may take while a flush waits for the interval.
const FAR: u64 = 100;

impl LocalCounter {
    /// Returns how soon the pending hits have to be sent, with `tick` between two batches: after the pause unless
    ///
    /// - a third of the time has passed until the limit is reached, at the rate of all instances;
    /// - this instance has taken two thirds of its share of the remaining hits, or will have when a reply can arrive:
    ///   the others may have done the same, and had unreported hits when the rest was measured;
    /// - it has taken more hits than the schedule assumes;
    /// - the store has not replied yet, or not for more than two pauses;
    /// - the limit is used up, which the store's last reply did not say: then within an interval;
    /// - the mode is `strict`: then at once.
    ///
    /// In the other cases the hits wait for a batch only if the limit is so far away that this does not matter.
    pub(in super::super) fn urgency(&self, round_trip: Period, tick: Period, now: Timestamp) -> Urgency {
        if self.choice.mode == Coordination::Strict && !self.unacknowledged.pending().is_empty() {
            // what others may not take meanwhile
            return Urgency::Now;
        }
        if self.plan.schedule.is_slow()
            && self.unacknowledged.pending().iter().any(|delta| delta.returned() > 0)
        {
            // which others wait for
            return Urgency::Interval;
        }
        let own = self.unacknowledged.admitted();
        // rejected hits and hits that are given back make nothing overshoot
        if own == 0 {
            let is_soon = self.plan.wants_read || self.is_newly_used_up(now);
            return if is_soon { Urgency::Interval } else { Urgency::Pause };
        }
        let instances = u64::from(self.plan.instances.max(1));
        let unknown = self
            .heard
            .last_reply_at
            .get()
            .is_none_or(|last_reply_at| now.since(last_reply_at) > self.plan.schedule.known_for());
        if !unknown {
            let soon = own.saturating_add(self.demand.in_the_next(round_trip, now));
            let share = u64::from(self.plan.remaining_at_reply) / instances;
            let early = self.plan.schedule.is_early(self.heard.last_reply_at.get(), now);
            if soon < share * 2 / 3 && !early && !self.plan.schedule.is_outrun(own, share) {
                return if self.is_newly_used_up(now) { Urgency::Interval } else { Urgency::Pause };
            }
            if early && self.plan.schedule.is_close() {
                return Urgency::Now;
            }
        }
        // without the hits that are pending, and in the window of `now`
        let remaining = self.remaining(now).saturating_add(own);
        let taken = own.saturating_add(self.demand.in_the_next(tick, now));
        let by_all = taken.saturating_mul(instances);
        let by_others = taken.saturating_mul(instances - 1);
        if by_all.saturating_mul(NEAR) >= remaining
            || (unknown && by_others.saturating_mul(NEAR_UNKNOWN) >= remaining)
        {
            Urgency::Now
        } else if !unknown || by_all.saturating_mul(FAR) >= remaining {
            Urgency::Tick
        } else {
            Urgency::Interval
        }
    }

    /// To be called after a reply, and when the limit has changed.
    pub(super) fn plan_flush(&mut self, now: Timestamp) {
        let remaining = self.remaining(now);
        self.plan.remaining_at_reply = saturated(remaining);
        if self.heard.last_reply_at.get().is_some() {
            let left = if remaining > 0 { self.plan.usage.time_for(remaining) } else { Period::default() };
            self.plan.schedule.plan(left, self.plan.usage.time_for(SLOW_HITS), &self.target.tiers);
        }
    }

    /// Returns whether the limit is used up, and the last reply did not say so, or did not know of returned hits.
    #[inline]
    fn is_newly_used_up(&self, now: Timestamp) -> bool {
        let Some(last) = self.unacknowledged.pending().last() else { return false };
        (last.unused > 0 || (last.rejected > 0 && self.plan.remaining_at_reply > 0))
            && self.remaining(now) == 0
    }
}
