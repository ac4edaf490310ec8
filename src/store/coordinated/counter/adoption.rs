//! Which of the store's states replace those of the estimate, and the other way round.

use smallvec::SmallVec;

use super::{LocalCounter, tiers::flows};
use crate::{
    limit::{
        Algorithm, Hits, Tier, Timestamp,
        algorithm::{CounterState, SlidingWindow},
    },
    store::remote::{ExactState, Replacement, Reply, Target},
};

/// Returns whether state `i` of `reply` replaces `state`. It does not if the state is exact, since the store has
/// adopted it or has not changed since (`is_exact`), or if the reply is about an earlier window.
pub(super) fn adopts(state: &CounterState, reply: &Reply, i: usize, is_exact: bool) -> bool {
    match (state, &reply.counters[i]) {
        (CounterState::FixedWindow(known), CounterState::FixedWindow(stored)) => stored.end() >= known.end(),
        _ => !is_exact,
    }
}

/// Lets the next hit begin a span of its own if the newest one is empty: that one began with hits that were leased and
/// not used, at the end of their lease.
pub(super) fn close_empty_span(tier: &Tier, state: &mut CounterState) {
    if let Some(window) = state.sliding_window()
        && window.spans().last().is_some_and(|span| span.hits == 0)
    {
        let spans = window.spans().iter().filter(|span| span.hits > 0).copied();
        let window = SlidingWindow::new(Timestamp::default(), spans);
        *state = CounterState::from_sliding_window(window, tier);
    }
}

impl LocalCounter {
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
        let (state, version) = self.known(target, i)?;
        let (mut state, version) = (state.clone(), version.known()?);
        let mut own = CounterState::unused(tier, now);
        self.unacknowledged.in_flight().iter().for_each(|delta| delta.apply(tier, &mut own, now));
        let leases = if self.lease_limit().counts_in(tier) { self.rare.leases() } else { &[] };
        for lease in leases {
            lease.include(tier, &mut state, now);
            lease.include(tier, &mut own, now);
        }
        let is_own = state.probe(tier, now, Hits(0)).used <= own.probe(tier, now, Hits(0)).used
            && state.availability(tier, now).reset <= own.availability(tier, now).reset;
        Some(ExactState { version, is_own, state })
    }
}
