//! The check of a counter's records against its [books](super::books), in builds with debug assertions.

use super::{
    Ask, Decided, LocalCounter,
    records::{PendingDelta, left_in},
    talk::Talk,
};
use crate::limit::{
    Decision, Direction, Hits, OverLimitPolicy, Tier, Timestamp,
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
            let (kept, merged_at) = ((sums.owed, sums.held), sums.merged_at);
            assert_eq!(kept, self.recorded(), "{self:?}");
            self.check_estimate(self.last_check_at.max(merged_at));
        }
    }

    /// Checks that the estimate at `now` has what the store lacks: whatever it has adopted, it is no lower than a counter
    /// of those hits alone, counted as early as they may have been.
    fn check_estimate(&self, now: Timestamp) {
        for (tier, state) in self.target.tiers.iter().zip(self.estimate.iter()) {
            let (used, own) = (used(tier, state, now), self.own_hits(tier, state, now));
            assert!(used >= own, "{tier}: {used} is below {own} in {self:?}");
        }
    }

    /// Returns what `tier`, whose estimate is `state`, has used at `now` of the hits that the store lacks.
    fn own_hits(&self, tier: &Tier, state: &CounterState, now: Timestamp) -> u64 {
        // the hits of tries that were given up may precede any of the others
        let admitted = self.rare.talk().into_iter().flat_map(Talk::admitted);
        let deltas = admitted.chain(self.unacknowledged.all()).filter(|delta| delta.limit.counts_in(tier));
        let hits = |delta: &PendingDelta| delta.change.hits.saturating_sub_unsigned(delta.unused);
        if let CounterState::FixedWindow(window) = state {
            let is_open = window.end() > now;
            let is_of_window = |delta: &&PendingDelta| delta.last_at.window_end(tier.period) == window.end();
            let own = deltas.filter(is_of_window).map(hits).fold(0, u64::saturating_add_signed);
            return if is_open { own } else { 0 };
        }
        let mut own = CounterState::unused(tier, Timestamp::default());
        deltas.for_each(|delta| own.add(tier, delta.at, CountChange::of(hits(delta)), now));
        used(tier, &own, now)
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
