//! Pending hits: collected, and sent to the store.

use smallvec::SmallVec;

use super::{
    LocalCounter,
    records::{Dropped, PendingDelta},
    tiers::{flows, has_flowed_back, same_windows},
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
                last.change.append(hits);
                last.last_at = last.last_at.max(now);
            }
            _ => self.push_pending(PendingDelta::of(hits, now)),
        }
    }

    /// The estimate must have the hits of `delta` already.
    pub(super) fn push_pending(&mut self, delta: PendingDelta) {
        if delta.is_none() {
            return;
        }
        let at = delta.at;
        self.unacknowledged.add(delta, &self.target.tiers, Timestamp::default());
        if self.unacknowledged.pending().len() > MANY {
            // in an outage there is one for each window that has not ended
            self.unacknowledged.merge_pending(&self.target.tiers, at);
        }
    }

    /// Moves pending hits to the reports of command `number`: those of one window if each has a key of its own in
    /// envoyproxy/ratelimit's format. Must not be called while others are in flight.
    pub(super) fn take_reports(&mut self, number: u32, now: Timestamp) -> (SmallVec<[Report; 1]>, Dropped) {
        let dropped = self.drop_ended(now);
        let pending = self.unacknowledged.pending();
        let leaves = |delta: &&PendingDelta| {
            !self.target.counts_rejected() || same_windows(&self.target.tiers, pending[0].at, delta.at)
        };
        // the others wait for the next command, in its order
        let count = pending.iter().take(Exchange::MAX_REPORTS).take_while(leaves).count();
        let reports = pending[..count].iter().map(PendingDelta::report).collect();
        self.unacknowledged.send(count, number);
        (reports, dropped)
    }

    /// Drops what the store would not count: hits of ended windows, and returns to a bucket that come too late. The
    /// others are merged as far as possible.
    pub(in super::super) fn drop_ended(&mut self, now: Timestamp) -> Dropped {
        let (mut dropped, is_alone) = (Dropped::default(), self.is_alone());
        let tiers = &self.target.tiers;
        self.unacknowledged.retain_pending(|delta| {
            if delta.has_ended(tiers, now) {
                dropped.add(delta.taken(), delta.returned());
                return false;
            }
            // as many were given back as were taken, which leaves others at other times
            let moves = delta.is_none() && flows(tiers);
            if has_flowed_back(tiers, is_alone, delta.at, delta.unused_until, now) {
                dropped.add(0, std::mem::take(&mut delta.unused));
            }
            moves || !delta.is_none()
        });
        self.unacknowledged.merge_pending(tiers, now);
        dropped
    }

    /// The hits that are lost if the counter is removed.
    pub(in super::super) fn owed_hits(&self) -> Dropped {
        let mut owed = Dropped::all_of(self.unacknowledged.pending());
        owed.add(0, self.leased_hits());
        owed
    }

    pub(super) fn carried_hits(&self) -> Dropped {
        Dropped::all_of(self.unacknowledged.in_flight())
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
