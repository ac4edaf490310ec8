//! How soon the pending hits have to be sent.

use super::{LocalCounter, place::Urgency, schedule::SLOW_HITS, tiers::saturated};
use crate::limit::{Coordination, Hits, Period, Timestamp};

/// The part of the remaining hits that all instances may take before the next reply while a flush waits for a batch.
const NEAR: u64 = 16;

/// The same, while this instance does not know the others' rate: after a quiet time, each of them may receive a burst.
const NEAR_UNKNOWN: u64 = 256;

/// The part that they may take while a flush waits for the interval.
const FAR: u64 = 100;

impl LocalCounter {
    /// Returns how soon the pending hits have to be sent, with `tick` between two batches. They wait for a batch only if
    /// the limit is so far away that this does not matter.
    pub(in super::super) fn urgency(&self, round_trip: Period, tick: Period, now: Timestamp) -> Urgency {
        let (pending, schedule) = (self.unacknowledged.pending(), &self.plan.schedule);
        if self.choice.mode == Coordination::Strict && !pending.is_empty() {
            // what others may not take meanwhile
            return Urgency::Now;
        }
        if schedule.is_slow() && pending.iter().any(|delta| delta.returned() > 0) {
            // which others wait for
            return Urgency::Interval;
        }
        let own = self.unacknowledged.admitted();
        let instances = u64::from(self.plan.instances.max(1));
        let last_reply_at = self.heard.last_reply_at.get();
        let last_reply_at = last_reply_at.filter(|last| now.since(*last) <= schedule.known_for());
        let is_early = |last| {
            // the others may have done the same, and had unreported hits when the rest was measured
            let share = u64::from(self.plan.remaining_at_reply) / instances;
            let soon = own.saturating_add(self.demand.in_the_next(round_trip, now));
            soon >= share * 2 / 3 || schedule.is_early(last, now) || schedule.is_outrun(own, share)
        };
        // rejected hits and hits that are given back make nothing overshoot
        if own == 0 || last_reply_at.is_some_and(|last| !is_early(last)) {
            let is_soon = own == 0 && self.plan.wants_read || self.is_newly_used_up(now);
            return if is_soon { Urgency::Interval } else { Urgency::Pause };
        }
        if schedule.is_close() && last_reply_at.is_some_and(|last| schedule.is_early(last, now)) {
            return Urgency::Now;
        }
        // without the hits that are pending, and in the window of `now`
        let remaining = self.remaining(now).saturating_add(own);
        let taken = own.saturating_add(self.demand.in_the_next(tick, now));
        let by_all = taken.saturating_mul(instances);
        let by_others = if last_reply_at.is_some() { 0 } else { by_all - taken };
        let reaches = |hits: u64, part| hits.saturating_mul(part) >= remaining;
        if reaches(by_all, NEAR) || reaches(by_others, NEAR_UNKNOWN) {
            Urgency::Now
        } else if last_reply_at.is_some() || reaches(by_all, FAR) {
            Urgency::Tick
        } else {
            Urgency::Interval
        }
    }

    /// To be called for each reply, before its instant is noted.
    pub(super) fn measure_usage(&mut self, now: Timestamp) {
        let last_reply_at = self.heard.last_reply_at.get();
        let time = last_reply_at.map_or(Period::default(), |last| now.since(last));
        let by_all = self.demand.rate_with_burst(now) * f64::from(self.plan.instances);
        // those of the tier that has the fewest left
        let used = self.look(Hits(0), now).before;
        self.plan.usage.record(used.0, by_all, time);
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
