//! Which of the store's states replace those of the estimate, and the other way round.

use super::{LocalCounter, tiers::flows};
use crate::{
    limit::{
        Algorithm, Hits, Tier, Timestamp,
        algorithm::{CounterState, SlidingWindow},
    },
    store::remote::{Replacement, Reply},
};

/// Returns whether state `i` of `reply` replaces `state`. It does not if the state is exact, since the store has adopted it or has
/// not changed since (`is_exact`), or if the reply is about an earlier window.
pub(super) fn adopts(state: &CounterState, reply: &Reply, i: usize, is_exact: bool) -> bool {
    match (state, &reply.counters[i]) {
        (CounterState::FixedWindow(known), CounterState::FixedWindow(stored)) => stored.end() >= known.end(),
        _ => !is_exact,
    }
}

/// Lets the next hit begin a span of its own if the newest one is empty: that one began with hits that were leased and not used,
/// at the end of their lease.
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
    /// Returns the exact state of sliding windows and buckets, for a store that has not changed since its last reply. None if
    /// there are no such tiers, or if it is not known what the store has counted, or if siblings have hits that they will report.
    pub(super) fn replacement(&self, now: Timestamp) -> Option<Box<Replacement>> {
        if self.is_version_lost || self.has_unsettled_siblings(now) || !flows(&self.target.tiers) {
            return None;
        }
        let mut states = self.estimate.clone();
        let mut is_own = true;
        for (tier, state) in self.target.tiers.iter().zip(states.iter_mut()) {
            if tier.algorithm == Algorithm::FixedWindow {
                continue;
            }
            let mut own = CounterState::unused(tier, now);
            self.unacknowledged.in_flight().iter().for_each(|delta| delta.apply(tier, &mut own, now));
            for lease in self.leases() {
                lease.include(tier, state, now);
                lease.include(tier, &mut own, now);
            }
            is_own &= state.probe(tier, now, Hits(0)).used <= own.probe(tier, now, Hits(0)).used
                && state.availability(tier, now).reset <= own.availability(tier, now).reset;
        }
        Some(Box::new(Replacement {
            version: self.version,
            is_own,
            states: states.iter().cloned().collect(),
        }))
    }
}
