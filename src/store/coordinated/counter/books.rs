//! What a counter has done with its hits, checked whenever it is found, in builds with debug assertions, which tests
//! are.
//!
//! > admitted = in the store + owed, and granted = spent + held + returned + stranded
//!
//! So each hit that is admitted here raises the hits owed to the store by one, or takes one of those held; only the
//! store's acknowledgement, a loss that a metric counts, or a return changes them otherwise. The records of both are
//! merged, moved and converted in many places, none of which may change the sums. And what is owed in the open window
//! is in the estimate, whatever replies it has adopted: an estimate that is too low admits hits above the limit.

use super::{
    Ask, Decided, LocalCounter,
    records::{PendingDelta, left_in},
    talk::Talk,
};
use crate::limit::{Decision, Direction, Hits, OverLimitPolicy, Timestamp, algorithm::CounterState};

/// The sums that the records of a counter must have.
#[derive(Debug, Default)]
pub(super) struct Books {
    #[cfg(debug_assertions)]
    sums: Box<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    /// Hits to be added to the store's count, less those to be taken off it.
    owed: i128,
    /// Leased hits that are not used.
    held: i128,
    /// Whether there were more hits than the records can have.
    is_full: bool,
    /// An instant of which windows that have ended are not told apart any more.
    merged_at: Timestamp,
}

/// The hits above which the records, which keep 64 bits, may be less than the sums.
const MOST: u128 = 1 << 61;

// === impl Books ===

impl Books {
    /// Returns the sums, unless they are full. None in other builds.
    #[inline]
    fn sums(&self) -> Option<&Sums> {
        #[cfg(debug_assertions)]
        return Some(&*self.sums).filter(|sums| !sums.is_full);
        #[cfg(not(debug_assertions))]
        None
    }

    #[inline]
    fn sums_mut(&mut self) -> Option<&mut Sums> {
        #[cfg(debug_assertions)]
        return Some(&mut *self.sums).filter(|sums| !sums.is_full);
        #[cfg(not(debug_assertions))]
        None
    }

    /// Notes that the store has to count so many `hits`, or so many fewer.
    #[inline]
    pub(super) fn owe(&mut self, hits: impl Into<i128>) {
        if let Some(sums) = self.sums_mut() {
            let hits = hits.into();
            sums.owed += hits;
            sums.is_full = hits.unsigned_abs().max(sums.owed.unsigned_abs()) >= MOST;
        }
    }

    /// Notes that the store does not have to count `taken` hits any more, nor to take off `returned` ones.
    #[inline]
    pub(super) fn settle(&mut self, taken: u64, returned: u64) {
        self.owe(i128::from(returned) - i128::from(taken));
    }

    /// Notes that so many `hits` are held, or so many fewer.
    #[inline]
    pub(super) fn hold(&mut self, hits: impl Into<i128>) {
        if let Some(sums) = self.sums_mut() {
            sums.held += hits.into();
        }
    }

    /// Notes that records which differ in windows that have ended at `now` may be one.
    #[inline]
    pub(super) fn merged(&mut self, now: Timestamp) {
        if let Some(sums) = self.sums_mut() {
            sums.merged_at = sums.merged_at.max(now);
        }
    }
}

impl LocalCounter {
    /// Checks the records against the books.
    ///
    /// # Panics
    ///
    /// In builds with debug assertions, if they differ.
    #[inline]
    pub(in super::super) fn check_books(&self) {
        if let Some(sums) = self.books.sums() {
            let (kept, merged_at) = ((sums.owed, sums.held), sums.merged_at);
            assert_eq!(kept, self.recorded(), "{self:?}");
            self.check_estimate(self.last_check_at.max(merged_at));
        }
    }

    /// Checks that the estimate of open windows at `now` has what the store lacks.
    fn check_estimate(&self, now: Timestamp) {
        for (tier, state) in self.target.tiers.iter().zip(self.estimate.iter()) {
            let CounterState::FixedWindow(window) = state else { continue };
            if window.end() <= now {
                continue;
            }
            let is_of_window = |delta: &&PendingDelta| {
                delta.limit.counts_in(tier) && delta.last_at.window_end(tier.period) == window.end()
            };
            let admitted = self.rare.talk().into_iter().flat_map(Talk::admitted);
            let all = self.unacknowledged.all().iter().chain(admitted);
            let own = all.filter(is_of_window).fold(0_u64, |own, delta| {
                own.saturating_sub(delta.unused).saturating_add_signed(delta.change.hits)
            });
            let used = state.probe(tier, now, Hits(0)).used.0;
            assert!(used >= own, "{tier}: {used} is below {own} in {self:?}");
        }
    }

    /// Returns the hits that its records owe to the store, and those that they hold.
    fn recorded(&self) -> (i128, i128) {
        let owed = self.unacknowledged.all().iter();
        let owed = owed.map(|delta| i128::from(delta.taken()) - i128::from(delta.returned())).sum();
        (owed, left_in(self.rare.leases()).into())
    }

    /// Returns the hits that were admitted here and are not in the store, less those of others that are held: what is
    /// granted or returned does not change it.
    #[inline]
    pub(super) fn balance(&self) -> i128 {
        if !cfg!(debug_assertions) {
            return 0;
        }
        let (owed, held) = self.recorded();
        owed - held
    }

    /// Checks that what was `decided` about `ask` has changed the balance that was `before` by as many hits as were
    /// admitted or given back, and by those that are rejected and count.
    #[inline]
    pub(super) fn check_balance(&self, before: i128, ask: &Ask, decided: &Decided) {
        if self.books.sums().is_none() {
            return;
        }
        let hits = match (decided, ask.direction) {
            (Decided::Wait(_), Direction::Take) => 0,
            (_, Direction::GiveBack) => -i128::from(ask.hits.0),
            (Decided::Now(Decision { over: true, cached, .. }, _), Direction::Take)
                if *cached || ask.policy == OverLimitPolicy::Ignore =>
            {
                0
            }
            (_, Direction::Take) => i128::from(ask.hits.0),
        };
        assert_eq!(self.balance() - before, hits, "{before} before {ask:?} is {decided:?}: {self:?}");
    }
}
