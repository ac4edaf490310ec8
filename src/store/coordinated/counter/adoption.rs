//! Which of the store's states replace those of the estimate.

use crate::{
    limit::{
        Tier, Timestamp,
        algorithm::{CounterState, SlidingWindow},
    },
    store::remote::Reply,
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
    if let CounterState::SlidingWindow(window, _) = state
        && window.spans().last().is_some_and(|span| span.hits == 0)
    {
        let spans = window.spans().iter().filter(|span| span.hits > 0).copied().collect();
        *state = CounterState::from_sliding_window(SlidingWindow::new(Timestamp::default(), spans), tier);
    }
}
