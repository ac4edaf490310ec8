//! Hits that count in a window which a later one has replaced in the estimate: their decision has waited for them.

use super::LocalCounter;
use crate::limit::{
    Decision, Direction, Hits, OverLimitPolicy, Tier, Timestamp, algorithm::CounterState, decide,
};

/// Returns whether `state` of `tier` is a window that begins after `at`.
fn begins_after(state: &CounterState, tier: &Tier, at: Timestamp) -> bool {
    matches!(state, CounterState::FixedWindow(window) if window.end() > at.after(tier.period))
}

impl LocalCounter {
    /// Returns whether the estimate does not have a window of `at` any more.
    pub(super) fn is_before_a_window(&self, at: Timestamp) -> bool {
        self.estimate.iter().zip(&self.target.tiers).any(|(state, tier)| begins_after(state, tier, at))
    }

    /// Takes leased `hits` at `at` from what the estimate still has of that time. Nothing but their lease says what was left in earlier
    /// windows. Returns none if another tier does not admit them.
    #[cold]
    pub(super) fn take_in_earlier_window(
        &mut self,
        policy: OverLimitPolicy,
        hits: Hits,
        at: Timestamp,
    ) -> Option<Decision> {
        let tiers = &self.target.tiers;
        let mut states = self.estimate.clone();
        for (state, tier) in
            states.iter_mut().zip(tiers).filter(|(state, tier)| begins_after(state, tier, at))
        {
            *state = CounterState::unused(tier, at);
        }
        let decision = decide(tiers, &mut states, policy, Direction::Take, hits, at);
        if decision.over {
            return None;
        }
        for ((state, taken), tier) in self.estimate.iter_mut().zip(states.iter()).zip(tiers) {
            if !begins_after(state, tier, at) {
                state.clone_from(taken);
            }
        }
        Some(decision)
    }
}
