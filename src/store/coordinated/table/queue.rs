//! The queue of counters that need attention, by the time at which they are due.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    limit::{CounterKey, Period},
    store::coordinated::counter::{QueuePlace, Urgency},
};

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

#[cfg(test)]
mod tests;
