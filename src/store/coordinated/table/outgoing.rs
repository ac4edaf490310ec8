//! The decisions that wait for calls to a node of the store, and when the next call leaves.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    limit::CounterKey,
    store::{coordinated::counter::Sent, remote::Command},
};

/// The most calls for decisions to one node: twice those of a round trip, for late replies and short distances.
const MAX_CALLS: usize = 16;

/// The most if they are full: nothing more can join one, so it leaves at once.
const FULL_CALLS: usize = 32;

/// The parts of a round trip that pass between two calls.
const PARTS: u32 = 8;

/// The most before the first reply, or on short round trips: enough to keep the node busy, few enough to share calls.
const FEW_CALLS: usize = 4;

/// The shortest distance of two calls.
const FINEST: Duration = Duration::from_micros(50);

/// The counters whose decisions are in one call: few, so that the node works while replies to other calls are applied.
pub(super) const MAX_BATCH: usize = 64;

/// Commands, and what is remembered of each until its reply.
pub(in super::super) type Outbox = Vec<(Command, Sent)>;

#[derive(Debug, Default)]
pub(super) struct NodeQueue {
    /// Their decisions wait, in order of arrival.
    pub(super) counters: Vec<CounterKey>,
    /// In flight.
    calls: usize,
    /// When the last of them left.
    left_at: Option<Instant>,
}

/// Returns how many calls for decisions may be in flight to a node, and the time between two.
fn pace(round_trip: Duration, budget: Duration) -> (usize, Duration) {
    let distance = round_trip / PARTS;
    if distance < FINEST {
        return (FEW_CALLS, Duration::ZERO);
    }
    // half of what a decision may wait besides, since the reply may be later than others
    (MAX_CALLS, distance.min(budget.saturating_sub(round_trip) / 2))
}

// === impl NodeQueue ===

impl NodeQueue {
    /// None if no decision waits, or a call has to return before. `round_trip` is zero before the first reply.
    pub(super) fn time_to_next(&self, round_trip: Duration, budget: Duration) -> Option<Duration> {
        let (most, distance) = pace(round_trip, budget);
        // nothing more can join a full call
        let is_full = self.counters.len() >= MAX_BATCH;
        let most = if is_full { FULL_CALLS } else { most };
        if self.counters.is_empty() || self.calls >= most {
            return None;
        }
        let since = self.left_at.filter(|_| self.calls > 0 && !is_full).map(|left_at| left_at.elapsed());
        Some(since.map_or(Duration::ZERO, |since| distance.saturating_sub(since)))
    }

    pub(super) fn begin_call(&mut self) {
        (self.calls, self.left_at) = (self.calls + 1, Some(Instant::now()));
    }

    pub(super) fn finish_call(&mut self) {
        self.calls -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_two_calls_fits_into_a_round_trip_and_the_budget() {
        let micros = Duration::from_micros;
        for (round_trip, most, distance) in [
            (0, FEW_CALLS, 0),
            (399, FEW_CALLS, 0),
            (400, MAX_CALLS, 50),
            (4_000, MAX_CALLS, 500),
            (12_000, MAX_CALLS, 1_500),
            // half of what the budget of 15 ms leaves
            (13_000, MAX_CALLS, 1_000),
            (15_000, MAX_CALLS, 0),
            (90_000, MAX_CALLS, 0),
        ] {
            assert_eq!(pace(micros(round_trip), micros(15_000)), (most, micros(distance)), "{round_trip}");
        }
    }
}
