//! What a counter has done with its hits, checked whenever it is found, in builds with debug assertions, which tests
//! are.
//!
//! > admitted = in the store + owed, and granted = spent + held + returned + stranded
//!
//! So each hit that is admitted here raises the hits owed to the store by one, or takes one of those held; only the
//! store's acknowledgement, a loss that a metric counts, or a return changes them otherwise. The records of both are
//! merged, moved and converted in many places, none of which may change the sums. And what is owed in the open window
//! is in the estimate, whatever replies it has adopted: an estimate that is too low admits hits above the limit.

use super::{Ask, Decided, LocalCounter};
use crate::limit::Timestamp;
#[cfg(debug_assertions)]
use crate::limit::{Decision, Direction, OverLimitPolicy};

/// The sums that the records of a counter must have.
#[derive(Debug, Default)]
pub(super) struct Books {
    #[cfg(debug_assertions)]
    sums: Box<Sums>,
}

#[cfg(debug_assertions)]
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
#[cfg(debug_assertions)]
const MOST: u128 = 1 << 61;

// === impl Books ===

#[cfg_attr(not(debug_assertions), expect(clippy::unused_self, reason = "nothing is kept"))]
impl Books {
    /// Notes that `hits` were counted here, and the store has to count them.
    #[inline]
    pub(super) fn counted(&mut self, hits: u64) {
        self.add(hits.into(), 0);
    }

    /// Notes that `hits` were given back here, and the store has to take them off.
    #[inline]
    pub(super) fn given_back(&mut self, hits: u64) {
        self.add(-i128::from(hits), 0);
    }

    /// Notes that the store has granted `hits`, or that hits of a lease that were used are held again.
    #[inline]
    pub(super) fn held(&mut self, hits: u64) {
        self.add(0, hits.into());
    }

    /// Notes that `hits` of those that were held are used or stranded.
    #[inline]
    pub(super) fn spent(&mut self, hits: u64) {
        self.add(0, -i128::from(hits));
    }

    /// Notes that `hits` of those that were held go back to the store.
    #[inline]
    pub(super) fn returned(&mut self, hits: u64) {
        self.add(-i128::from(hits), -i128::from(hits));
    }

    /// Notes that the store has counted `taken` hits, and has taken off `returned` ones, or that they are lost.
    #[inline]
    pub(super) fn settled(&mut self, taken: u64, returned: u64) {
        self.add(i128::from(returned) - i128::from(taken), 0);
    }

    /// Notes that records which differ in windows that have ended at `now` may be one.
    #[inline]
    pub(super) fn merged(&mut self, now: Timestamp) {
        #[cfg(debug_assertions)]
        {
            self.sums.merged_at = self.sums.merged_at.max(now);
        }
        #[cfg(not(debug_assertions))]
        let _ = now;
    }

    #[cfg(debug_assertions)]
    fn add(&mut self, owed: i128, held: i128) {
        self.sums.owed += owed;
        self.sums.held += held;
        self.sums.is_full |= owed.unsigned_abs().max(self.sums.owed.unsigned_abs()) >= MOST;
    }

    #[cfg(not(debug_assertions))]
    #[inline]
    const fn add(&mut self, _owed: i128, _held: i128) {}
}

#[cfg(debug_assertions)]
impl LocalCounter {
    /// Checks the records against the books.
    ///
    /// # Panics
    ///
    /// In builds with debug assertions, if they differ.
    pub(in super::super) fn check_books(&self) {
        use super::records::PendingDelta;
        use crate::limit::{Hits, algorithm::CounterState};

        let all = self.unacknowledged.all();
        let Sums { owed, held, is_full, merged_at } = *self.books.sums;
        if is_full {
            return;
        }
        assert_eq!((owed, held), self.recorded(), "{self:?}");
        for (tier, state) in self.target.tiers.iter().zip(self.estimate.iter()) {
            let CounterState::FixedWindow(window) = state else { continue };
            let now = self.last_check_at.max(merged_at);
            if window.end() <= now {
                continue;
            }
            let is_of_window = |delta: &&PendingDelta| {
                delta.limit.counts_in(tier) && delta.last_at.window_end(tier.period) == window.end()
            };
            let own = all.iter().filter(is_of_window).fold(0_u64, |own, delta| {
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
        (owed, super::records::left_in(self.rare.leases()).into())
    }

    /// Returns the hits that were admitted here and are not in the store, less those of others that are held: what is
    /// granted or returned does not change it.
    pub(super) fn balance(&self) -> i128 {
        let (owed, held) = self.recorded();
        owed - held
    }

    /// Checks that what was `decided` about `ask` has changed the balance that was `before` by as many hits as were
    /// admitted or given back, and by those that are rejected and count.
    pub(super) fn check_balance(&self, before: i128, ask: &Ask, decided: &Decided) {
        let hits = match (decided, ask.direction) {
            (Decided::Wait(_), _) => 0,
            (_, Direction::GiveBack) => -i128::from(ask.hits.0),
            (Decided::Now(Decision { over: true, cached, .. }, _), Direction::Take)
                if *cached || ask.policy == OverLimitPolicy::Ignore =>
            {
                0
            }
            (_, Direction::Take) => i128::from(ask.hits.0),
        };
        let is_same = self.balance() - before == hits || self.books.sums.is_full;
        assert!(is_same, "{before} before {ask:?} is {decided:?}: {self:?}");
    }
}

/// As in builds with debug assertions, but nothing is checked.
#[cfg(not(debug_assertions))]
#[expect(clippy::unused_self, reason = "nothing is checked")]
impl LocalCounter {
    #[inline]
    pub(in super::super) const fn check_books(&self) {}

    #[inline]
    pub(super) const fn balance(&self) {}

    #[inline]
    pub(super) const fn check_balance(&self, (): (), _ask: &Ask, _decided: &Decided) {}
}
