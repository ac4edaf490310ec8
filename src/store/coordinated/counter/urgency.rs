//! How soon the pending hits have to be sent.

use super::{LocalCounter, place::Urgency, schedule::FEW_HITS, tiers::saturated};
use crate::limit::{Coordination, Hits, Period, Tier, Timestamp};

/// The part of the remaining hits that all instances may take before the next reply while a flush waits for a batch.
const NEAR: u64 = 16;

/// The same, while this instance does not know the others' rate: after a quiet time, each of them may receive a burst.
const NEAR_UNKNOWN: u64 = 256;

/// The pauses for which the last reply says something of others' hits.
const KNOWN_FOR: u64 = 2;

impl LocalCounter {
    /// Returns how soon the pending hits have to be sent, with `tick` between two batches. They wait for a batch only if
    /// the limit is so far away that this does not matter.
    pub(in super::super) fn urgency(&self, round_trip: Period, tick: Period, now: Timestamp) -> Urgency {
        let (pending, schedule) = (self.unacknowledged.pending(), &self.plan.schedule);
        if self.choice.mode == Coordination::Strict && !pending.is_empty() {
            // what others may not take meanwhile
            return Urgency::Now;
        }
        // others wait for returned hits
        let is_soon = self.plan.wants_read || pending.iter().any(|delta| delta.returned() > 0);
        let least = if is_soon { Urgency::Interval } else { Urgency::Pause };
        let (own, instances) = (self.unacknowledged.admitted(), u64::from(self.plan.instances.max(1)));
        let last_reply_at = self.heard.last_reply_at();
        let known = last_reply_at.filter(|last| now.since(*last) <= schedule.pause() * KNOWN_FOR);
        let is_early = |last| {
            // the others may have done the same, and had unreported hits when the rest was measured
            let share = u64::from(self.plan.remaining_at_reply) / instances;
            let soon = own.saturating_add(self.demand.in_the_next(round_trip, now));
            soon >= share * 2 / 3 || schedule.is_early(own, share, last, now)
        };
        // rejected hits and hits that are given back make nothing overshoot
        if own == 0 || known.is_some_and(|last| !is_early(last)) {
            return least;
        }
        // without the hits that are pending, and in the window of `now`
        let remaining = self.remaining(now).saturating_add(own);
        let taken = own.saturating_add(self.demand.in_the_next(tick, now));
        let by_all = taken.saturating_mul(instances);
        let reaches = |hits: u64, part| hits.saturating_mul(part) >= remaining;
        match known {
            _ if reaches(by_all, NEAR) => Urgency::Now,
            Some(_) => Urgency::Tick,
            None if reaches(by_all - taken, NEAR_UNKNOWN) => Urgency::Now,
            None => Urgency::Interval,
        }
    }

    /// To be called for each reply, before its instant is noted.
    pub(super) fn measure_usage(&mut self, now: Timestamp) {
        let last_reply_at = self.heard.last_reply_at();
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
        if self.heard.last_reply_at().is_some() {
            let left = if remaining > 0 { self.plan.usage.time_for(remaining) } else { Period::default() };
            let tiers: &[Tier] = if self.target.counts_rejected() { &[] } else { &self.target.tiers };
            self.plan.schedule.plan(left, self.plan.usage.time_for(FEW_HITS), tiers);
        }
    }
}
