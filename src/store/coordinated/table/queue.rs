//! The queue of counters that need attention, by slots of time.
//!
//! The flush loop takes what is due in chunks, so that no lock is held for longer than that takes, and counters that
//! are due together leave together.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Duration, Instant, sleep_until},
};

use crate::{
    limit::{CounterKey, Period},
    store::coordinated::counter::{QueuePlace, Slot, Turn, Urgency},
};

/// The length of a slot.
const TICK: Period = Period::from_millis(5);

/// A counter due after this time is looked at then, and queued again. Slots so far apart still have an order.
const LONGEST_DELAY: Period = Period::from_secs(2 * 3_600);

const CHUNK: usize = 256;

#[derive(Debug)]
pub(super) struct AttentionQueue {
    started: Instant,
    slots: Mutex<Slots>,
    /// Notified when a counter is due before the flush loop would wake up.
    earlier: Notify,
}

#[derive(Debug)]
struct Slots {
    /// Counters by slot; slot 0 is due at once. To save memory a counter is known by [`CounterKey::shard`], half of its
    /// key, which counters of the same entries share: the place of each says whether it is queued.
    counters: BTreeMap<u64, Vec<u64>>,
    /// The first slot that was not taken yet, counted from the start.
    first: u64,
    /// The slot for which the flush loop wakes up; 0 if it is awake.
    wakes_at: u64,
}

// === impl AttentionQueue ===

impl AttentionQueue {
    pub(super) fn new() -> Self {
        let slots = Slots { counters: BTreeMap::new(), first: 1, wakes_at: 0 };
        Self { started: Instant::now(), slots: Mutex::new(slots), earlier: Notify::new() }
    }

    /// `delay` is rounded down to a multiple of `grid`, unless nothing is left then. Counters with the same grid share
    /// a turn, unless too many are due in it. Does nothing if the counter is due earlier.
    pub(super) fn push(
        &self,
        key: CounterKey,
        place: &mut QueuePlace,
        urgency: Urgency,
        delay: Period,
        grid: Period,
    ) {
        let (tick, now) = (TICK.as_nanos(), self.elapsed());
        let at = now.saturating_add(delay.min(LONGEST_DELAY).as_nanos());
        let grid = (grid.as_nanos() / tick).max(1);
        let before = at / tick / grid * grid;
        let slot = if before * tick > now { before } else { at.div_ceil(tick).next_multiple_of(grid) };
        let slots = self.slots.lock();
        if urgency == Urgency::Now {
            if place.make_due(Slot::of(slots.first), urgency) {
                self.queue(slots, key, 0);
            }
            return;
        }
        let slot = slots.least_full(slot, now / tick + 1, grid);
        if place.make_due(Slot::of(slot), urgency) {
            let slot = slot.max(slots.first);
            place.queue(Slot::of(slot));
            self.queue(slots, key, slot);
        }
    }

    fn queue(&self, mut slots: MutexGuard<'_, Slots>, key: CounterKey, slot: u64) {
        slots.counters.entry(slot).or_default().push(key.shard());
        if slot < slots.wakes_at {
            slots.wakes_at = slot;
            drop(slots);
            self.earlier.notify_one();
        }
    }

    /// Queues the counter again if it is due later. In `slot`, another counter of its entries may be queued.
    pub(super) fn is_due(&self, key: CounterKey, place: &mut QueuePlace, slot: Option<Slot>) -> bool {
        match place.take_turn(slot) {
            Turn::Due => true,
            Turn::Passed => false,
            Turn::Later(due) => {
                place.queue(due);
                let slots = self.slots.lock();
                let slot = slots.first + u64::from(due.distance_from(Slot::of(slots.first)));
                self.queue(slots, key, slot);
                false
            }
        }
    }

    /// Takes up to [`CHUNK`] counters that are due, or were due when they were queued. Returns what [`CounterKey::shard`]
    /// returns for each of them, and their slot; none if they were due at once.
    pub(super) fn take(&self) -> Option<(Vec<u64>, Option<Slot>)> {
        let last = self.elapsed() / TICK.as_nanos();
        let Slots { counters, first, wakes_at } = &mut *self.slots.lock();
        *wakes_at = 0;
        let due = counters.first_entry().filter(|due| *due.key() <= last);
        *first = due.as_ref().map_or(last + 1, |due| *due.key()).max(*first);
        let mut due = due?;
        let (number, rest) = (*due.key(), due.get().len().saturating_sub(CHUNK));
        let shards = if rest == 0 { due.remove() } else { due.get_mut().split_off(rest) };
        Some((shards, (number > 0).then(|| Slot::of(number))))
    }

    pub(super) async fn wait(&self) {
        let wakes_at = {
            let mut slots = self.slots.lock();
            slots.wakes_at = slots.counters.keys().next().copied().unwrap_or(u64::MAX);
            slots.wakes_at
        };
        let at = self.started + Duration::from_nanos(wakes_at.saturating_mul(TICK.as_nanos()));
        tokio::select! {
            // a fixed order, so that simulations are reproducible
            biased;
            () = sleep_until(at) => {}
            () = self.earlier.notified() => {}
        }
    }

    /// In nanoseconds since the start.
    fn elapsed(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

// === impl Slots ===

impl Slots {
    /// Returns `slot`, or, if it has a full chunk, an earlier one of its grid, not before `least`, that has none.
    fn least_full(&self, slot: u64, least: u64, grid: u64) -> u64 {
        let is_full = |slot: &u64| self.counters.get(slot).is_some_and(|counters| counters.len() >= CHUNK);
        let least = least.max(self.first).max((slot + 1).saturating_sub(grid));
        let mut earlier = (least..slot).rev().step_by(2);
        if is_full(&slot) { earlier.find(|slot| !is_full(slot)).unwrap_or(slot) } else { slot }
    }
}

#[cfg(test)]
mod tests;
