//! Pending hits: collected, and sent to the store.

use smallvec::SmallVec;

use super::{
    LocalCounter,
    records::{Dropped, PendingDelta},
    tiers::{flows, same_windows},
};
use crate::{
    limit::Timestamp,
    store::remote::{Exchange, Report},
};

/// Above this many, deltas of ended windows are merged at once. The sweep merges them every few seconds.
const MANY: usize = 16;

impl LocalCounter {
    pub(in super::super) fn has_pending(&self) -> bool {
        !self.unacknowledged.pending().is_empty() || self.plan.wants_read
    }

    pub(in super::super) fn can_flush(&self) -> bool {
        self.has_pending() && !self.has_ledger_on_way()
    }

    pub(in super::super) fn add_pending(&mut self, hits: i64, now: Timestamp) {
        match self.unacknowledged.pending_mut().last_mut() {
            Some(last) if hits > 0 && same_windows(&self.target.tiers, last.last_at, now) => {
                last.add(hits, now);
            }
            _ => self.push_pending(PendingDelta::of(hits, now)),
        }
    }

    /// The estimate must have the hits of `delta` already.
    pub(super) fn push_pending(&mut self, delta: PendingDelta) {
        let pending = self.unacknowledged.pending_mut();
        let tiers = &self.target.tiers;
        if delta.is_none() || PendingDelta::merge(pending, &delta, tiers, Timestamp::default()) {
            return;
        }
        let at = delta.at;
        self.unacknowledged.push(delta);
        if self.unacknowledged.pending().len() > MANY {
            self.merge_ended(at);
        }
    }

    /// Merges deltas that differ only in ended windows: in an outage there is one for each window that has not ended.
    fn merge_ended(&mut self, now: Timestamp) {
        self.unacknowledged.merge_pending(&self.target.tiers, now);
    }

    /// Moves pending hits to the reports of command `number`: those of one window if each has a key of its own in
    /// envoyproxy/ratelimit's format. Must not be called while others are in flight.
    pub(super) fn take_reports(&mut self, number: u32, now: Timestamp) -> (SmallVec<[Report; 1]>, Dropped) {
        if self.unacknowledged.pending().is_empty() {
            return (SmallVec::new(), Dropped::default());
        }
        let mut dropped = self.drop_pending_of_ended(now);
        let is_one_window = self.target.counts_rejected();
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
            let unused = first.unused;
            if unused > 0 && self.must_keep(tiers, first.at, first.unused_until, now) {
                dropped.add(0, unused);
                self.unacknowledged.pending_mut()[0].unused = 0;
            }
            if self.unacknowledged.pending()[0].is_none() && !moves {
                self.unacknowledged.remove_first_pending();
            } else {
                self.unacknowledged.send_first();
            }
        }
        self.unacknowledged.set_number(number);
        (self.unacknowledged.in_flight().iter().map(PendingDelta::report).collect(), dropped)
    }

    /// The store would not count hits of ended windows. The others are merged as far as possible.
    pub(in super::super) fn drop_ended(&mut self, now: Timestamp) -> Dropped {
        let dropped = self.drop_pending_of_ended(now);
        self.merge_ended(now);
        dropped
    }

    fn drop_pending_of_ended(&mut self, now: Timestamp) -> Dropped {
        let mut dropped = Dropped::default();
        let tiers = &self.target.tiers;
        if !self.unacknowledged.pending().iter().any(|delta| delta.has_ended(tiers, now)) {
            return dropped;
        }
        for delta in self.unacknowledged.take_pending() {
            if delta.has_ended(tiers, now) {
                dropped.add(delta.taken(), delta.returned());
            } else {
                self.unacknowledged.push(delta);
            }
        }
        dropped
    }

    /// The hits that are lost if the counter is removed.
    pub(in super::super) fn owed_hits(&self) -> Dropped {
        let mut owed = Dropped { unreported: 0, stranded: self.leased_hits() };
        for delta in self.unacknowledged.pending() {
            owed.add(delta.taken(), delta.returned());
        }
        owed
    }

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
    use crate::{
        limit::{Algorithm, OverLimitPolicy, Period, Tier},
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
        assert_eq!(counter.unacknowledged.admitted(), u64::MAX);
        assert_eq!(counter.drop_ended(start.after(Period::from_secs(9_000))).unreported, u64::MAX);
    }
}
