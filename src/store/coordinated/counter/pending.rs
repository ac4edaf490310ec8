//! Pending hits: collected, sent to the store, and acknowledged by its reply.

use std::sync::Arc;

use super::{
    LocalCounter,
    adoption::{adopts, close_empty_span},
    records::{DeliveryOutcome, Dropped, PendingDelta},
    tiers::{flows, has_ended, same_windows, saturated},
};
use crate::{
    limit::{Hits, Period, Timestamp},
    store::{
        coordinated::delivery::Delivery,
        remote::{Command, Op, Replacement, Reply, Report},
    },
};

/// The number of pending deltas above which those of ended windows are merged at once. The sweep merges them every few seconds.
const MANY: usize = 16;

/// The inaccuracy of the time of a reply.
const INACCURACY: Period = Period::from_millis(20);

/// Returns the sum of `hits`, of which a request may have any number.
fn sum(hits: impl Iterator<Item = u64>) -> u64 {
    hits.fold(0, u64::saturating_add)
}

impl LocalCounter {
    /// Returns whether there is something to send: hits, or the wish to know the store's count.
    pub(in super::super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.wants_read
    }

    /// Returns whether there is something to send, and nothing in flight.
    pub(in super::super) fn can_flush(&self) -> bool {
        self.has_pending() && self.in_flight.is_empty()
    }

    /// Returns when the oldest of what is pending was counted.
    pub(in super::super) fn oldest_pending_at(&self) -> Option<Timestamp> {
        let oldest = self.pending.first().map(|delta| delta.at);
        oldest.or_else(|| self.wants_read.then_some(self.last_check_at))
    }

    /// Adds `hits` that were counted at `now` to the pending ones.
    pub(in super::super) fn add_pending(&mut self, hits: i64, now: Timestamp) {
        self.push_pending(PendingDelta::of(hits, now));
    }

    pub(super) fn push_pending(&mut self, delta: PendingDelta) {
        if delta.is_none() {
            return;
        }
        match self.pending.last_mut() {
            Some(last) if same_windows(&self.target.tiers, last.at, delta.at) => last.append(&delta),
            _ => {
                self.pending.push(delta);
                if self.pending.len() > MANY {
                    self.merge_ended(delta.at);
                }
            }
        }
    }

    /// Merges pending deltas that differ only in windows that have ended, which the store does not count any more. During an outage
    /// there is one delta for each window that has not ended, however many windows have passed.
    fn merge_ended(&mut self, now: Timestamp) {
        let tiers = &self.target.tiers;
        self.pending.merge(|earlier, later| {
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

    /// Moves what is pending to `commands`, unless an earlier flush is in flight. Hits whose windows have ended are dropped.
    pub(in super::super) fn take_commands(&mut self, now: Timestamp, commands: &mut Vec<Command>) -> Dropped {
        if !self.in_flight.is_empty() {
            return Dropped::default();
        }
        let (reports, dropped) = self.take_reports(now);
        let target = Arc::clone(&self.target);
        let command = |at, op| Command { target: Arc::clone(&target), at, op };
        if reports.is_empty() && self.wants_read {
            self.flushed = self.next_number();
            // a place for the outcome
            self.in_flight.push(PendingDelta::default());
            let replaces = if self.is_overcounted() { self.replacement(now) } else { None };
            let read = match replaces {
                Some(_) => Op::Add { report: Report { at: now, since: now, replaces, ..Report::default() } },
                None => Op::Take { hits: 0 },
            };
            commands.push(command(now, read));
        }
        self.wants_read = false;
        if let Some(fetch) = &mut self.fetch {
            fetch.is_overcounted = false;
        }
        commands.extend(reports.into_iter().map(|report| command(report.at, Op::Add { report })));
        dropped
    }

    fn is_overcounted(&self) -> bool {
        self.fetch.as_ref().is_some_and(|fetch| fetch.is_overcounted)
    }

    /// Moves the pending hits to the reports that send them. Must not be called while others are in flight.
    pub(super) fn take_reports(&mut self, now: Timestamp) -> (Vec<Report>, Dropped) {
        let mut dropped = Dropped::default();
        let tiers = &self.target.tiers;
        for mut delta in std::mem::take(&mut self.pending) {
            if tiers.iter().all(|tier| has_ended(tier, delta.last_at, now)) {
                dropped.add(delta.taken(), delta.unused);
                continue;
            }
            if delta.unused > 0 && self.must_keep(delta.at, delta.unused_until, now) {
                dropped.add(0, std::mem::take(&mut delta.unused));
            }
            match self.in_flight.last_mut() {
                // a flush that was not applied is sent with what was counted since
                Some(last) if same_windows(tiers, last.at, delta.at) => last.append(&delta),
                _ if delta.is_none() => {}
                _ => self.in_flight.push(delta),
            }
        }
        self.flushed = self.next_number();
        let mut reports: Vec<Report> = self.in_flight.iter().map(PendingDelta::report).collect();
        // each report would replace what the one before it has added
        if let [report] = &mut reports[..] {
            report.replaces = self.replacement(now);
            if self.instances <= 1 {
                report.since = report.at;
            }
        }
        (reports, dropped)
    }

    /// Returns the exact state of sliding windows and buckets, for a store that has not changed since its last reply. None if
    /// there are no such tiers, or if it is not known what the store has counted, or if siblings have hits that they will report.
    pub(super) fn replacement(&self, now: Timestamp) -> Option<Box<Replacement>> {
        if self.is_version_lost || self.has_unsettled_siblings() || !flows(&self.target.tiers) {
            return None;
        }
        let mut states = self.estimate.clone();
        for (tier, state) in self.target.tiers.iter().zip(&mut states) {
            for lease in self.leases() {
                lease.include(tier, state, now);
            }
        }
        Some(Box::new(Replacement { version: self.version, states }))
    }

    /// Applies the `delivery` of each report that was taken last. Reports that were definitely not applied are pending again.
    pub(in super::super) fn apply_delivery(
        &mut self,
        delivery: impl Fn(usize) -> Delivery,
    ) -> DeliveryOutcome {
        let mut outcome = DeliveryOutcome::default();
        let sent = std::mem::take(&mut self.in_flight);
        let last = sent.len().saturating_sub(1);
        for (i, delta) in sent.into_iter().enumerate().rev() {
            match delivery(i) {
                Delivery::Applied => {
                    self.acknowledged = self.acknowledged.saturating_add(saturated(delta.taken()));
                    if i == last {
                        outcome.admitted = delta.admitted();
                    }
                }
                Delivery::NotApplied if delta.is_none() => {}
                Delivery::NotApplied => self.pending.insert(0, delta),
                Delivery::Unknown => {
                    self.is_version_lost = true;
                    let unknown = delta.change.hits.unsigned_abs().saturating_add(delta.unused);
                    outcome.unknown = outcome.unknown.saturating_add(unknown);
                }
            }
        }
        outcome
    }

    /// Returns the number of the next command. Commands of one counter are carried out in this order, except for flushes, which are
    /// calls of their own.
    pub(in super::super) const fn next_number(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.sent
    }

    /// Applies the reply to the last flush.
    pub(in super::super) fn apply_flush_reply(&mut self, reply: &Reply, now: Timestamp) {
        self.apply_reply_to(reply, self.flushed, now);
    }

    /// Lets a reply of the instant `now` be applied, although one of a later instant was.
    pub(in super::super) fn accept_time(&mut self, now: Timestamp) {
        if let Some(last) = self.last_reply_at.get() {
            self.last_reply_at.set(last.min(now));
        }
    }

    /// Applies the reply to a command without a number, as if no other had been sent since.
    pub(in super::super) fn apply_reply(&mut self, reply: &Reply, now: Timestamp) -> bool {
        self.apply_reply_to(reply, self.sent, now)
    }

    /// Adopts the store's counters, adds what it does not know yet, takes away what only this instance may use, and plans the
    /// next flush. `number` is that of the command. A reply that a later one has overtaken changes nothing.
    /// Returns whether it was applied.
    pub(in super::super) fn apply_reply_to(&mut self, reply: &Reply, number: u32, now: Timestamp) -> bool {
        let precedes = |other: u32| number != other && other.wrapping_sub(number) < u32::MAX / 2;
        let is_late = self.last_reply_at.get().is_some_and(|last| {
            // some replies have an estimated time
            now.after(INACCURACY) < last || (now <= last && precedes(self.applied))
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
        let unknown = if precedes(self.flushed) { &self.in_flight[..] } else { &[][..] };
        let leases = self.fetch.as_ref().map_or(&[][..], |fetch| &fetch.held);
        let siblings = self.siblings.as_deref().unwrap_or_default();
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
            for delta in unknown.iter().chain(&self.pending) {
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
        self.fallback = None;
        let remaining = self.remaining(now);
        self.remaining_at_reply = saturated(remaining);
        // the hits counted here during the first flush are the first measurement of the rate
        let meanwhile = if self.last_reply_at.get().is_none() { self.unacknowledged_hits() } else { 0 };
        let own = u64::from(std::mem::take(&mut self.acknowledged)).saturating_add(meanwhile);
        self.usage.record(
            self.used(now),
            own,
            self.instances,
            self.schedule.interval(),
            self.last_reply_at.get(),
            now,
        );
        self.schedule.plan(self.usage.time_for(remaining), now);
        self.last_reply_at.set(now);
        true
    }

    /// Drops pending hits whose windows have ended, which the store would not count any more, and merges the others as far as
    /// possible.
    pub(in super::super) fn drop_ended(&mut self, now: Timestamp) -> Dropped {
        let mut dropped = Dropped::default();
        let tiers = &self.target.tiers;
        self.pending.retain(|delta| {
            let ended = tiers.iter().all(|tier| has_ended(tier, delta.last_at, now));
            if ended {
                dropped.add(delta.taken(), delta.unused);
            }
            !ended
        });
        self.merge_ended(now);
        dropped
    }

    /// Returns the hits that were admitted here since the store's last reply.
    pub(super) fn unacknowledged_hits(&self) -> u64 {
        sum(self.pending.iter().chain(&self.in_flight).map(PendingDelta::admitted))
    }

    /// Returns the hits that are lost with the counter.
    pub(in super::super) fn owed_hits(&self) -> Dropped {
        Dropped {
            unreported: sum(self.pending.iter().map(PendingDelta::taken)),
            stranded: sum(self.pending.iter().map(PendingDelta::returned)).saturating_add(self.leased_hits()),
        }
    }

    /// Returns the hits that are in flight, which the store counts unless the call fails.
    pub(in super::super) fn hits_in_flight(&self) -> u64 {
        sum(self.in_flight.iter().map(PendingDelta::taken))
    }

    /// Returns the hits that are counted in the tier that has the fewest left.
    fn used(&self, now: Timestamp) -> u64 {
        self.look(Hits(0), now).before.0
    }

    /// Returns how many of the `admitted` hits, which the store has just counted according to `reply`, are above a limit. The
    /// hits counted last are the excess, so every excess hit is reported once, by the instance that admitted it.
    pub(in super::super) fn overshoot(&self, reply: &Reply, admitted: u64, now: Timestamp) -> u64 {
        let over = reply.counters.iter().zip(&self.target.tiers).map(|(state, tier)| {
            state.probe(tier, now, Hits(0)).used.0.saturating_sub(tier.capacity().into())
        });
        over.max().unwrap_or_default().min(admitted)
    }
}

#[cfg(test)]
mod tests {
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
                assert!(counter.pending.len() <= MANY + 1, "{} at {i}", counter.pending.len());
            }
            // nothing is lost before the last window has ended
            assert_eq!(counter.owed_hits().unreported, 6_000);
            let now = start.after(Period::from_secs(2_999));
            let dropped = counter.drop_ended(now);
            let lost = if periods.contains(&hour) { 0 } else { 2 * 2_999 };
            assert_eq!((dropped.unreported, counter.owed_hits().unreported), (lost, 6_000 - lost));
            assert!(counter.pending.len() <= 2, "{}", counter.pending.len());
            // the window that is open has its own delta
            assert_eq!(counter.pending.last().map(PendingDelta::taken), Some(2));
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
