//! Pending hits: collected, sent to the store, and acknowledged by its reply.

use smallvec::SmallVec;

use super::{
    LocalCounter,
    adoption::{adopts, close_empty_span},
    records::{DeliveryOutcome, Dropped, PendingDelta},
    tiers::{flows, has_ended, same_windows, saturated},
    usage::MeasuredReply,
};
use crate::{
    limit::{Hits, Period, Timestamp},
    store::{
        coordinated::delivery::Delivery,
        remote::{Exchange, Reply, Report},
    },
};

/// The number of pending deltas above which those of ended windows are merged at once. The sweep merges them every few seconds.
const MANY: usize = 16;

/// The inaccuracy of the time of a reply.
const INACCURACY: Period = Period::from_millis(20);

/// The time by which a reply is at most earlier than that to an earlier command, unless the store's clock has stepped back.
const CLOCK_STEP: Period = Period::from_secs(1);

/// Returns the sum of `hits`, of which a request may have any number.
fn sum(hits: impl Iterator<Item = u64>) -> u64 {
    hits.fold(0, u64::saturating_add)
}

impl LocalCounter {
    /// Returns whether there is something to send: hits, or the wish to know the store's count.
    pub(in super::super) fn has_pending(&self) -> bool {
        !self.unacknowledged.pending().is_empty() || self.wants_read
    }

    /// Returns whether there is something to send, and no other exchange is about the ledger.
    pub(in super::super) fn can_flush(&self) -> bool {
        self.has_pending() && !self.has_ledger_on_way()
    }

    /// Returns when the oldest of what is pending was counted.
    pub(in super::super) fn oldest_pending_at(&self) -> Option<Timestamp> {
        let oldest = self.unacknowledged.pending().first().map(|delta| delta.at);
        oldest.or_else(|| self.wants_read.then_some(self.last_check_at))
    }

    /// Adds `hits` that were counted at `now` to the pending ones.
    pub(in super::super) fn add_pending(&mut self, hits: i64, now: Timestamp) {
        match self.unacknowledged.pending_mut().last_mut() {
            Some(last) if hits > 0 && same_windows(&self.target.tiers, last.at, now) => last.add(hits, now),
            _ => self.push_pending(PendingDelta::of(hits, now)),
        }
    }

    pub(super) fn push_pending(&mut self, delta: PendingDelta) {
        if delta.is_none() {
            return;
        }
        let tiers = &self.target.tiers;
        let last = self.unacknowledged.pending_mut().last_mut();
        if last.is_some_and(|last| last.takes_in(&delta, tiers)) {
            return;
        }
        self.unacknowledged.push(delta);
        if self.unacknowledged.pending().len() > MANY {
            self.merge_ended(delta.at);
        }
    }

    /// Has the store count what was just made pending as of `at`, in the same windows.
    pub(in super::super) fn date_last_report(&mut self, at: Timestamp) {
        if let Some(last) = self.unacknowledged.pending_mut().last_mut() {
            last.last_at = last.last_at.max(at);
        }
    }

    /// Merges pending deltas that differ only in windows that have ended, which the store does not count any more. During an outage
    /// there is one delta for each window that has not ended, however many windows have passed.
    fn merge_ended(&mut self, now: Timestamp) {
        let tiers = &self.target.tiers;
        self.unacknowledged.merge_pending(|earlier, later| {
            let same = tiers.iter().all(|tier| {
                let alone = std::slice::from_ref(tier);
                same_windows(alone, earlier.last_at, later.at) || has_ended(tier, later.last_at, now)
            });
            if same {
                earlier.append(later);
            }
            same
        });
    }

    pub(super) fn is_overcounted(&self) -> bool {
        self.leasing().is_some_and(|leasing| leasing.is_overcounted)
    }

    /// Notes that the store is sent the exact state.
    pub(super) fn end_overcounting(&mut self) {
        if self.is_overcounted() {
            self.leasing_mut().is_overcounted = false;
        }
    }

    /// Moves the pending hits to the reports that send them in one command: those of one window if each has a key of its own in
    /// envoyproxy/ratelimit's format. Must not be called while others are in flight.
    pub(super) fn take_reports(&mut self, number: u32, now: Timestamp) -> (SmallVec<[Report; 1]>, Dropped) {
        if self.unacknowledged.pending().is_empty() {
            return (SmallVec::new(), Dropped::default());
        }
        let mut dropped = self.drop_pending_of_ended(now);
        let is_one_window = self.counts_rejected();
        while let Some(first) = self.unacknowledged.pending().first() {
            let tiers = &self.target.tiers;
            let sent = self.unacknowledged.in_flight();
            let must_wait = sent.len() == Exchange::MAX_REPORTS
                || sent.last().is_some_and(|last| is_one_window && !same_windows(tiers, last.at, first.at));
            if must_wait {
                // until the next command, in its order
                break;
            }
            // as many were given back as were taken, which leaves others at other times
            let moves = first.is_none() && flows(tiers);
            let mut delta = *first;
            if delta.unused > 0 && self.must_keep(delta.at, delta.unused_until, now) {
                dropped.add(0, std::mem::take(&mut delta.unused));
                self.unacknowledged.pending_mut()[0] = delta;
            }
            // a flush that was not applied is sent with what was counted since
            let last = self.unacknowledged.in_flight_mut().last_mut();
            let is_taken_in = last.is_some_and(|last| last.takes_in(&delta, tiers));
            if is_taken_in || delta.is_none() && !moves {
                self.unacknowledged.remove_first_pending();
            } else {
                self.unacknowledged.send_first();
            }
        }
        self.flushed = number;
        let mut reports: SmallVec<[Report; 1]> =
            self.unacknowledged.in_flight().iter().map(PendingDelta::report).collect();
        // it would replace what others have added
        if let [report] = &mut reports[..]
            && self.unacknowledged.pending().is_empty()
            // the estimate does not know when the store counts what arrives later
            && report.at <= now
        {
            report.replaces = self.replacement(now);
            if self.instances <= 1 {
                report.since = report.at;
            }
        }
        (reports, dropped)
    }

    /// Applies the `delivery` of the reports that were taken last. If they were definitely not applied, they are pending again.
    pub(super) fn apply_delivery(&mut self, delivery: Delivery) -> DeliveryOutcome {
        let mut outcome = DeliveryOutcome::default();
        let sent = self.unacknowledged.in_flight();
        match delivery {
            Delivery::Applied => {
                outcome.admitted = sent.last().map_or(0, PendingDelta::admitted);
                let taken = sum(sent.iter().map(PendingDelta::taken));
                self.acknowledged = self.acknowledged.saturating_add(saturated(taken));
            }
            Delivery::NotApplied => {
                self.unacknowledged.return_flight();
                return outcome;
            }
            Delivery::Unknown | Delivery::OnWay(_) => {
                self.is_version_lost |= !sent.is_empty();
                outcome.unknown = sum(sent.iter().map(|delta| delta.owed().all()));
            }
        }
        self.unacknowledged.end_flight();
        outcome
    }

    /// Lets a reply of the instant `now` be applied, although one of a later instant was.
    pub(super) fn accept_time(&mut self, now: Timestamp) {
        if let Some(last) = self.last_reply_at.get() {
            self.last_reply_at.set(last.min(now));
        }
    }

    /// Adopts the store's counters, adds what it does not know yet, takes away what only this instance may use, and plans the
    /// next flush. `number` is that of the command. A reply that a later one has overtaken changes nothing.
    /// Returns whether it was applied.
    pub(super) fn apply_reply_to(&mut self, reply: &Reply, number: u32, now: Timestamp) -> bool {
        let precedes = |other: u32| number != other && other.wrapping_sub(number) < u32::MAX / 2;
        let is_late = self.last_reply_at.get().is_some_and(|last| {
            // some replies have an estimated time. The clock has stepped back if the reply to a later command is of a much earlier one
            let is_earlier =
                now.after(INACCURACY) < last && (now.after(CLOCK_STEP) > last || !self.is_later(number));
            is_earlier || (now <= last && precedes(self.applied))
        });
        if reply.counters.len() != self.target.tiers.len() || is_late {
            // what the reply to the later command was applied to may have been incomplete
            self.is_version_lost |= !is_late || reply.version != self.version;
            self.wants_read |= is_late && number == self.flushed;
            return false;
        }
        self.applied = number;
        let is_same = !self.is_version_lost && reply.version == self.version && reply.version > 0;
        let is_exact = reply.matched || is_same;
        let unknown = if precedes(self.flushed) { self.unacknowledged.in_flight() } else { &[][..] };
        let (leases, given_up) = (self.rare.leases(), self.given_up());
        let siblings = self.rare.more().and_then(|more| more.siblings.as_deref());
        let siblings = siblings.map_or(&[][..], |siblings| &siblings.hits);
        let mut is_incomplete = false;
        for (i, tier) in self.target.tiers.iter().enumerate() {
            let state = &mut self.estimate[i];
            if !adopts(state, reply, i, is_exact) {
                continue;
            }
            if siblings.iter().any(|sibling| sibling.is_uncertain(tier)) {
                is_incomplete = true;
                continue;
            }
            state.clone_from(&reply.counters[i]);
            for delta in unknown.iter().chain(self.unacknowledged.pending()).chain(&given_up) {
                delta.apply(tier, state, now);
            }
            for lease in leases {
                lease.exclude(tier, state, now);
            }
            for sibling in siblings {
                sibling.apply(tier, state, now);
            }
            if !leases.is_empty() {
                close_empty_span(tier, state);
            }
        }
        (self.version, self.is_version_lost) = (reply.version, is_incomplete);
        self.wants_read |= is_incomplete;
        self.end_fallback();
        // the hits counted here during the first flush are the first measurement of the rate
        let meanwhile = if self.last_reply_at.get().is_none() { self.unacknowledged_hits() } else { 0 };
        let own = u64::from(std::mem::take(&mut self.acknowledged)).saturating_add(meanwhile);
        let measured = MeasuredReply {
            used: self.used(now),
            own,
            instances: self.instances.into(),
            interval: self.schedule.interval(),
            last: self.last_reply_at.get(),
            now,
        };
        self.usage.record(&mut self.measured_replies, measured);
        self.last_reply_at.set(now);
        self.plan_flush(now);
        self.return_useless(now);
        true
    }

    /// Drops pending hits whose windows have ended, which the store would not count any more, and merges the others as far as
    /// possible.
    pub(in super::super) fn drop_ended(&mut self, now: Timestamp) -> Dropped {
        let dropped = self.drop_pending_of_ended(now);
        self.merge_ended(now);
        dropped
    }

    fn drop_pending_of_ended(&mut self, now: Timestamp) -> Dropped {
        let mut dropped = Dropped::default();
        let tiers = &self.target.tiers;
        self.unacknowledged.retain_pending(|delta| {
            let ended = tiers.iter().all(|tier| has_ended(tier, delta.last_at, now));
            if ended {
                dropped.add(delta.taken(), delta.returned());
            }
            !ended
        });
        dropped
    }

    /// Returns the hits that were admitted here since the store's last reply.
    pub(super) fn unacknowledged_hits(&self) -> u64 {
        sum(self.unacknowledged.all().iter().map(PendingDelta::admitted))
    }

    /// Returns the hits that are lost with the counter.
    pub(in super::super) fn owed_hits(&self) -> Dropped {
        let mut owed = Dropped { unreported: 0, stranded: self.leased_hits() };
        for delta in self.unacknowledged.pending() {
            owed.add(delta.taken(), delta.returned());
        }
        owed
    }

    /// Returns the hits that the reports in flight carry.
    pub(super) fn carried_hits(&self) -> Dropped {
        let mut carried = Dropped::default();
        for delta in self.unacknowledged.in_flight() {
            carried.add(delta.taken(), delta.returned());
        }
        carried
    }

    /// Returns the hits that are counted in the tier that has the fewest left.
    fn used(&self, now: Timestamp) -> u64 {
        self.look(Hits(0), now).before.0
    }

    /// Returns how many of the `admitted` hits, which the store has just counted according to `reply`, are above a limit. The
    /// hits counted last are the excess, so every excess hit is reported once, by the instance that admitted it.
    pub(super) fn overshoot(&self, reply: &Reply, admitted: u64, now: Timestamp) -> u64 {
        let over = reply.counters.iter().zip(&self.target.tiers).map(|(state, tier)| {
            state.probe(tier, now, Hits(0)).used.0.saturating_sub(tier.capacity().into())
        });
        over.max().unwrap_or_default().min(admitted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::Generation, *};
    use crate::{
        limit::{Algorithm, OverLimitPolicy, Tier},
        store::remote::Target,
    };

    fn counter(periods: &[Period], now: Timestamp) -> LocalCounter {
        let tier = |period: &Period| Tier { requests: 5, period: *period, algorithm: Algorithm::FixedWindow };
        let tiers: Vec<Tier> = periods.iter().map(tier).collect();
        let target =
            Target { path: "d|k=v".into(), tiers: tiers.into(), over_limit_policy: OverLimitPolicy::Ignore };
        LocalCounter::new(Arc::new(target), Period::from_millis(100), Generation(1), now)
    }

    /// While the store is away nothing is sent, and every window has hits.
    #[test]
    fn an_outage_of_many_windows_leaves_few_pending_deltas() {
        let start = Timestamp::from_secs(3_600 * 400_000);
        let (second, hour) = (Period::from_secs(1), Period::from_secs(3_600));
        for periods in [&[second][..], &[second, hour], &[Period::from_millis(1), second, hour]] {
            let mut counter = counter(periods, start);
            for i in 0..3_000 {
                counter.add_pending(2, start.after(Period::from_secs(i)));
                assert!(
                    counter.unacknowledged.pending().len() <= MANY + 1,
                    "{} at {i}",
                    counter.unacknowledged.pending().len()
                );
            }
            // nothing is lost before the last window has ended
            assert_eq!(counter.owed_hits().unreported, 6_000);
            let now = start.after(Period::from_secs(2_999));
            let dropped = counter.drop_ended(now);
            let lost = if periods.contains(&hour) { 0 } else { 2 * 2_999 };
            assert_eq!((dropped.unreported, counter.owed_hits().unreported), (lost, 6_000 - lost));
            assert!(
                counter.unacknowledged.pending().len() <= 2,
                "{}",
                counter.unacknowledged.pending().len()
            );
            // the window that is open has its own delta
            assert_eq!(counter.unacknowledged.pending().last().map(PendingDelta::taken), Some(2));
        }
    }

    #[test]
    fn any_number_of_the_largest_hits_is_counted() {
        let start = Timestamp::from_secs(3_600);
        let mut counter = counter(&[Period::from_secs(60)], start);
        for i in 0..4 {
            counter.add_pending(i64::MAX, start.after(Period::from_secs(100 * i)));
        }
        assert_eq!(counter.owed_hits().unreported, u64::MAX);
        assert_eq!(counter.unacknowledged_hits(), u64::MAX);
        assert_eq!(counter.drop_ended(start.after(Period::from_secs(9_000))).unreported, u64::MAX);
    }
}
