//! The queue of counters that need attention, by the time at which they are due; and for each node of the store, that of
//! counters whose decisions wait, and when the next call leaves.

use std::{collections::BTreeSet, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::counter::{QueuePlace, Sent, Urgency};
use weir_limit::{CounterKey, Period};
use weir_store::remote::Command;

/// Of the times of [places](QueuePlace), in nanoseconds.
const UNIT: u64 = 8;

#[derive(Debug)]
pub(super) struct AttentionQueue {
    started: Instant,
    /// Each counter once, by the time that is its [place](QueuePlace). Those that were evicted meanwhile are still here.
    due: Mutex<BTreeSet<(u64, CounterKey)>>,
    /// Notified when something has to be done earlier than it was known when the table's task went to sleep.
    pub(super) earlier: Notify,
}

// === impl AttentionQueue ===

impl AttentionQueue {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), due: Mutex::default(), earlier: Notify::new() }
    }

    /// The counter is due after `delay`, unless it is due before. That is rounded down to a multiple of `grid`, but not to
    /// the past: counters with the same grid share a turn.
    pub(super) fn push(
        &self,
        key: CounterKey,
        place: &mut QueuePlace,
        urgency: Urgency,
        delay: Period,
        grid: Period,
    ) {
        let (now, grid) = (self.now(), grid.as_nanos());
        let turn = || (now.saturating_add(delay.as_nanos()) / grid).max(now / grid + 1);
        let at = if urgency == Urgency::Now { now } else { turn().saturating_mul(grid) } / UNIT;
        let before = place.due_at();
        if !place.make_due(at, urgency) {
            return;
        }
        let mut due = self.due.lock();
        if let Some(before) = before {
            due.remove(&(before, key));
        }
        let is_first = due.first().is_none_or(|(first, _)| at < *first);
        due.insert((at, key));
        drop(due);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Takes up to `most` counters that are due, each with the time at which it was.
    pub(super) fn take(&self, most: usize) -> Vec<(u64, CounterKey)> {
        let (now, mut due) = (self.now(), self.due.lock());
        let is_due = |first: &(u64, CounterKey)| first.0 <= now / UNIT;
        std::iter::from_fn(|| due.first().is_some_and(is_due).then(|| due.pop_first())?).take(most).collect()
    }

    /// Returns when the first counter is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let (at, _) = *self.due.lock().first()?;
        Some(self.started + Period::from_nanos(at * UNIT).into())
    }

    /// In nanoseconds since the start.
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

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
pub(crate) type Outbox = Vec<(Command, Sent)>;

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
mod tests;
