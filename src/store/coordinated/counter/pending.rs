//! Pending hits: collected, and sent to the store.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    LocalCounter,
    limits::joined,
    records::{Dropped, PendingDelta},
    talk::Talk,
    tiers::{flows, same_windows},
};
use crate::{
    limit::{Algorithm, Hits, Timestamp, algorithm::CounterState},
    store::remote::{ExactState, Exchange, Replacement, Report, Target},
};

/// The number of pending deltas above which those of ended windows are merged at once. The sweep merges them every few
/// seconds.
const MANY: usize = 16;

impl LocalCounter {
    /// Returns whether there is something to send: hits, or the wish to know the store's count.
    pub(in super::super) fn has_pending(&self) -> bool {
        !self.unacknowledged.pending().is_empty() || self.plan.wants_read
    }

    /// Returns whether there is something to send, and no other exchange is about the ledger.
    pub(in super::super) fn can_flush(&self) -> bool {
        self.has_pending() && !self.has_ledger_on_way()
    }

    /// Adds `hits` that were counted at `now` to the pending ones.
    pub(in super::super) fn add_pending(&mut self, hits: i64, now: Timestamp) {
        match self.unacknowledged.pending_mut().last_mut() {
            Some(last)
                if hits > 0
                    && last.limit.has_counters_of(&self.target)
                    && same_windows(&self.target.tiers, last.last_at, now) =>
            {
                last.add(hits, now);
                self.books.owe(hits);
            }
            _ => self.push_pending(self.delta(hits, now)),
        }
    }

    /// Returns a record of `hits` at `at` under the limit in use, which are given back if they are negative.
    pub(super) fn delta(&self, hits: i64, at: Timestamp) -> PendingDelta {
        PendingDelta::of(&self.target, hits, at)
    }

    /// Makes hits of a lease that are given back unused pending, to return them to the store.
    pub(super) fn push_unused(&mut self, delta: PendingDelta) {
        self.books.hold(-i128::from(delta.unused));
        self.push_pending(delta);
    }

    /// Makes `delta` pending, whose hits are in the estimate.
    pub(super) fn push_pending(&mut self, delta: PendingDelta) {
        self.books.owe(i128::from(delta.taken()) - i128::from(delta.returned()));
        let pending = self.unacknowledged.pending_mut();
        if delta.is_none() || PendingDelta::merge(pending, &delta, Timestamp::default()) {
            return;
        }
        let at = delta.at;
        self.unacknowledged.push(delta);
        if self.unacknowledged.pending().len() > MANY {
            self.merge_ended(at);
        }
    }

    /// Merges pending deltas that differ only in windows that have ended, which the store does not count any more.
    /// During an outage there is one delta for each window that has not ended, however many windows have passed.
    fn merge_ended(&mut self, now: Timestamp) {
        self.books.see(now);
        self.unacknowledged.merge_pending(now);
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

    /// Moves the pending hits to the reports that send them in one command: those of one window if each has a key of
    /// its own in envoyproxy/ratelimit's format. Also returns the tiers of other limits that the command is about. Must
    /// not be called while others are in flight.
    pub(super) fn take_reports(
        &mut self,
        number: u32,
        now: Timestamp,
    ) -> (SmallVec<[Report; 1]>, Option<Arc<Target>>, Dropped) {
        if self.unacknowledged.pending().is_empty() {
            return (SmallVec::new(), None, Dropped::default());
        }
        let mut dropped = self.drop_pending_of_ended(now);
        let is_one_window = self.target.counts_rejected();
        while let Some(first) = self.unacknowledged.pending().first() {
            let tiers = &first.limit.tiers;
            let sent = self.unacknowledged.in_flight();
            let must_wait = sent.len() == Exchange::MAX_REPORTS
                || sent.last().is_some_and(|last| is_one_window && !same_windows(tiers, last.at, first.at))
                || self.has_too_many_tiers(&first.limit);
            if must_wait {
                // until the next command, in its order
                break;
            }
            // as many were given back as were taken, which leaves others at other times
            let moves = first.is_none() && flows(tiers);
            let unused = first.unused;
            if unused > 0 && self.must_keep(tiers, first.at, first.unused_until, now) {
                dropped.add(0, unused);
                self.books.settle(0, unused);
                self.unacknowledged.pending_mut()[0].unused = 0;
            }
            if self.unacknowledged.pending()[0].is_none() && !moves {
                self.unacknowledged.remove_first_pending();
            } else {
                self.unacknowledged.send_first();
            }
        }
        self.numbers.flushed = number;
        let beside = self.reported_tiers();
        let target =
            beside.as_ref().map_or_else(|| Arc::clone(&self.target), |beside| joined(&self.target, beside));
        let in_flight = self.unacknowledged.in_flight().iter();
        let mut reports: SmallVec<[Report; 1]> = in_flight.map(|delta| delta.report(&target)).collect();
        // the estimate does not know when the store counts what arrives later
        let is_known =
            self.unacknowledged.pending().is_empty() && reports.iter().all(|report| report.at <= now);
        let first = reports.iter().map(|report| report.since).min();
        if let Some(last) = reports.last_mut()
            && is_known
        {
            last.replaces = self.replacement(&target, now);
            last.since = if self.plan.instances <= 1 { last.at } else { first.unwrap_or(last.since) };
        }
        (reports, beside, dropped)
    }

    /// Returns the exact states of the sliding windows and buckets of `target`, for a store in which they have not
    /// changed since its last reply. None if there are no such tiers, or if it is not known what the store has counted
    /// in any.
    pub(super) fn replacement(&self, target: &Target, now: Timestamp) -> Option<Box<Replacement>> {
        if !flows(&target.tiers) {
            return None;
        }
        let states: SmallVec<_> = (0..target.tiers.len()).map(|i| self.exact_state(target, i, now)).collect();
        states.iter().any(Option::is_some).then(|| Box::new(Replacement(states)))
    }

    /// Returns the exact state of tier `i` of `target`, if it is a sliding window or a bucket and it is known what the
    /// store has counted.
    fn exact_state(&self, target: &Target, i: usize, now: Timestamp) -> Option<ExactState> {
        let tier = &target.tiers[i];
        if tier.algorithm == Algorithm::FixedWindow {
            return None;
        }
        let mut admitted = self.rare.talk().into_iter().flat_map(Talk::admitted);
        if admitted.any(|delta| delta.limit.counts_in(tier)) {
            // the store may take them for their tries
            return None;
        }
        let (state, version) = self.known(target, i)?;
        let (mut state, version) = (state.clone(), version.known()?);
        let mut own = CounterState::unused(tier, now);
        self.unacknowledged.in_flight().iter().for_each(|delta| delta.apply(tier, &mut own, now));
        let leases = if self.lease_limit().counts_in(tier) { self.rare.leases() } else { &[] };
        for lease in leases {
            state.reserve(tier, now, lease.until, lease.left());
            own.reserve(tier, now, lease.until, lease.left());
        }
        let is_own = state.probe(tier, now, Hits(0)).used <= own.probe(tier, now, Hits(0)).used
            && state.availability(tier, now).reset <= own.availability(tier, now).reset;
        Some(ExactState { version, is_own, state })
    }

    /// Drops pending hits whose windows have ended, which the store would not count any more, and merges the others as
    /// far as possible.
    pub(in super::super) fn drop_ended(&mut self, now: Timestamp) -> Dropped {
        let dropped = self.drop_pending_of_ended(now);
        self.merge_ended(now);
        dropped
    }

    fn drop_pending_of_ended(&mut self, now: Timestamp) -> Dropped {
        let mut dropped = Dropped::default();
        if !self.unacknowledged.pending().iter().any(|delta| delta.has_ended(now)) {
            return dropped;
        }
        for delta in self.unacknowledged.take_pending() {
            if delta.has_ended(now) {
                dropped.add(delta.taken(), delta.returned());
            } else {
                self.unacknowledged.push(delta);
            }
        }
        self.books.settle(dropped.unreported, dropped.stranded);
        dropped
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
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::Generation, *};
    use crate::limit::{OverLimitPolicy, Period, Tier};

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

    /// Requests bring limits of other tiers in turn.
    #[test]
    fn an_outage_of_many_windows_leaves_few_pending_deltas_of_several_limits() {
        let start = Timestamp::from_secs(3_600 * 400_000);
        let (second, minute, day) = (Period::from_secs(1), Period::from_secs(60), Period::from_secs(86_400));
        let mut counter = counter(&[second, day], start);
        let limits = [&[minute, day][..], &[second], &[minute, Period::from_secs(3_600)]];
        let limits = limits.map(|periods| self::counter(periods, start).target);
        for i in 0..3_000 {
            let now = start.after(Period::from_secs(i));
            counter.add_pending(1, now);
            for limit in &limits {
                counter.under(limit, now, |counter| counter.add_pending(1, now));
            }
            let pending = counter.unacknowledged.pending().len();
            assert!(pending <= MANY + 4, "{pending} at {i}");
        }
        assert_eq!(counter.owed_hits().unreported, 12_000);
    }

    #[test]
    fn any_number_of_the_largest_hits_is_counted() {
        let start = Timestamp::from_secs(3_600);
        let mut counter = counter(&[Period::from_secs(60)], start);
        for i in 0..4 {
            counter.add_pending(i64::MAX, start.after(Period::from_secs(100 * i)));
        }
        assert_eq!(counter.owed_hits().unreported, u64::MAX);
        assert_eq!(counter.unacknowledged.admitted_under(&counter.target), u64::MAX);
        assert_eq!(counter.drop_ended(start.after(Period::from_secs(9_000))).unreported, u64::MAX);
    }
}
