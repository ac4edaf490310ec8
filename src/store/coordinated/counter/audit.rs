//! The check of a counter's records against its [books](super::books), in builds with debug assertions.

use super::{
    Ask, Decided, LocalCounter,
    records::{PendingDelta, left_in},
    talk::Talk,
};
use crate::limit::{
    Algorithm, Basis, Decision, Direction, Hits, OverLimitPolicy, Period, Tier, Timestamp,
    algorithm::{CountChange, CounterState},
};

/// Returns the hits that `tier` has used in `state` at `now`.
fn used(tier: &Tier, state: &CounterState, now: Timestamp) -> u64 {
    state.probe(tier, now, Hits(0)).used.0
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
            assert_eq!((sums.owed, sums.held), self.recorded(), "{self:?}");
            // others may have given back what it has counted
            if !sums.is_guessed && !self.is_beside {
                self.check_estimate(self.last_check_at.max(sums.seen_at));
            }
        }
    }

    /// Checks that the estimate of windows at `now` has what the store lacks, whatever it has adopted. Not of buckets,
    /// which may count fewer hits than were added: those above their burst are forgotten, or refill at once.
    fn check_estimate(&self, now: Timestamp) {
        for (tier, state) in self.target.tiers.iter().zip(self.estimate.iter()) {
            let (used, own) = match state {
                CounterState::FixedWindow(window) if window.end() > now => {
                    (used(tier, state, now), self.own_hits_until(window.end(), tier))
                }
                _ if tier.algorithm == Algorithm::SlidingWindow => {
                    // hits of the last half of a period, so that a little difference of clocks does not matter
                    let later = now.after(Period::from_nanos(tier.period.as_nanos() / 2));
                    (used(tier, state, later), used(tier, &self.own_sliding(tier, later), later))
                }
                _ => continue,
            };
            assert!(used >= own, "{tier}: {used} is below {own} in {self:?}");
        }
    }

    /// Returns what the store lacks. The hits of tries that were given up may precede any of the others.
    fn own_deltas(&self) -> impl Iterator<Item = &PendingDelta> {
        let admitted = self.rare.talk().into_iter().flat_map(Talk::admitted);
        admitted.chain(self.unacknowledged.all())
    }

    /// Returns the hits that the store lacks in the window of `tier` that ends at `end`.
    fn own_hits_until(&self, end: Timestamp, tier: &Tier) -> u64 {
        let own = self.own_deltas().filter(|delta| delta.last_at.window_end(tier.period) == end);
        own.fold(0, |own, delta| own.saturating_sub(delta.unused).saturating_add_signed(delta.change.hits))
    }

    /// Returns a counter of the hits that the store lacks, counted as early as they may have been.
    fn own_sliding(&self, tier: &Tier, now: Timestamp) -> CounterState {
        let mut own = CounterState::unused(tier, Timestamp::default());
        for delta in self.own_deltas() {
            let hits = delta.change.hits.saturating_sub_unsigned(delta.unused);
            own.add(tier, delta.at, CountChange::of(hits), now);
        }
        own
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
            (Decided::Now(Decision { over: true, basis, .. }, _), Direction::Take)
                if *basis == Basis::LocalCache || ask.policy == OverLimitPolicy::Ignore =>
            {
                0
            }
            (_, Direction::Take) => i128::from(ask.hits.0),
        };
        assert_eq!(self.balance() - before, hits, "{before} before {ask:?} is {decided:?}: {self:?}");
    }
}
