//! The queue of counters that need attention: a timing wheel.
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

/// The resolution of the wheel.
const TICK: Period = Period::from_millis(5);

/// The number of slots. A counter that is due later is looked at in the last one, and queued again.
const SLOTS: u64 = 1_024;

/// A counter due after this time is looked at then, and queued again. Slots so far apart still have an order.
const LONGEST_DELAY: Period = Period::from_secs(2 * 3_600);

const CHUNK: usize = 256;

#[derive(Debug)]
pub(super) struct AttentionQueue {
    started: Instant,
    wheel: Mutex<Wheel>,
    /// Notified when a counter is due before the flush loop would wake up.
    earlier: Notify,
}

#[derive(Debug)]
struct Wheel {
    /// Chunks of counters by slot; slot 0 is due at once. To save memory a counter is known by [`CounterKey::shard`],
    /// half of its key, which counters of the same entries share: the place of each says whether it is queued.
    slots: BTreeMap<u64, Vec<Vec<u64>>>,
    /// The first slot that was not taken yet, counted from the start.
    first: u64,
    /// The slot for which the flush loop wakes up; 0 if it is awake.
    wakes_at: u64,
}

#[derive(Debug)]
pub(super) struct Chunk {
    /// What [`CounterKey::shard`] returns for each of the counters.
    pub(super) shards: Vec<u64>,
    /// None if they were due at once.
    pub(super) slot: Option<Slot>,
}

// === impl AttentionQueue ===

impl AttentionQueue {
    pub(super) fn new() -> Self {
        let wheel = Wheel { slots: BTreeMap::new(), first: 1, wakes_at: 0 };
        Self { started: Instant::now(), wheel: Mutex::new(wheel), earlier: Notify::new() }
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
        if urgency == Urgency::Now {
            return self.push_now(key, place);
        }
        let (tick, now) = (TICK.as_nanos(), self.elapsed());
        let at = now.saturating_add(delay.min(LONGEST_DELAY).as_nanos());
        let grid = (grid.as_nanos() / tick).max(1);
        let before = at / tick / grid * grid;
        let number = if before * tick > now { before } else { at.div_ceil(tick).next_multiple_of(grid) };
        let wheel = self.wheel.lock();
        let number = wheel.least_full(number, now / tick + 1, grid);
        if place.make_due(Slot::of(number), urgency) {
            self.queue(wheel, key, place, number);
        }
    }

    fn push_now(&self, key: CounterKey, place: &mut QueuePlace) {
        let mut wheel = self.wheel.lock();
        if !place.make_due(Slot::of(wheel.first), Urgency::Now) {
            return;
        }
        wheel.add(key, 0);
        if wheel.wakes_at > 0 {
            wheel.wakes_at = 0;
            drop(wheel);
            self.earlier.notify_one();
        }
    }

    fn queue(&self, mut wheel: MutexGuard<'_, Wheel>, key: CounterKey, place: &mut QueuePlace, number: u64) {
        let number = wheel.push(key, number);
        place.queue(Slot::of(number));
        if number < wheel.wakes_at {
            wheel.wakes_at = number;
            drop(wheel);
            self.earlier.notify_one();
        }
    }

    /// Queues the counter again if it is due later. In `slot`, another counter of its entries may be queued.
    pub(super) fn is_due(&self, key: CounterKey, place: &mut QueuePlace, slot: Option<Slot>) -> bool {
        match place.take_turn(slot) {
            Turn::Due => true,
            Turn::Passed => false,
            Turn::Later(due) => {
                let wheel = self.wheel.lock();
                let number = wheel.first + u64::from(due.distance_from(Slot::of(wheel.first)));
                self.queue(wheel, key, place, number);
                false
            }
        }
    }

    /// Takes up to [`CHUNK`] counters that are due, or were due when they were queued.
    pub(super) fn take(&self) -> Option<Chunk> {
        let last = self.elapsed() / TICK.as_nanos();
        let Wheel { slots, first, wakes_at } = &mut *self.wheel.lock();
        *wakes_at = 0;
        let due = slots.first_entry().filter(|slot| *slot.key() <= last);
        *first = due.as_ref().map_or(last + 1, |slot| *slot.key()).max(*first);
        let mut due = due?;
        let (number, shards) = (*due.key(), due.get_mut().pop()?);
        if due.get().is_empty() {
            due.remove();
        }
        Some(Chunk { shards, slot: (number > 0).then(|| Slot::of(number)) })
    }

    pub(super) async fn wait(&self) {
        let number = {
            let mut wheel = self.wheel.lock();
            wheel.wakes_at = wheel.slots.keys().next().copied().unwrap_or(u64::MAX);
            wheel.wakes_at
        };
        if number == u64::MAX {
            return self.earlier.notified().await;
        }
        let at = self.started + Duration::from(Period::from_nanos(number.saturating_mul(TICK.as_nanos())));
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

// === impl Wheel ===

impl Wheel {
    /// Returns the slot: `slot`, or the nearest one of the wheel.
    fn push(&mut self, key: CounterKey, slot: u64) -> u64 {
        let slot = slot.clamp(self.first, self.first + SLOTS - 1);
        self.add(key, slot);
        slot
    }

    fn add(&mut self, key: CounterKey, slot: u64) {
        let chunks = self.slots.entry(slot).or_default();
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(key.shard()),
            _ => chunks.push(vec![key.shard()]),
        }
    }

    /// Returns `slot`, or, if it has a full chunk, an earlier one of its grid, not before `least`, that has none.
    fn least_full(&self, slot: u64, least: u64, grid: u64) -> u64 {
        let is_full = |slot: u64| self.slots.get(&slot).is_some_and(|chunks| chunks[0].len() == CHUNK);
        let least = least.max(self.first).max((slot + 1).saturating_sub(grid));
        let earlier = || (least..slot).rev().step_by(2);
        if is_full(slot) { earlier().find(|slot| !is_full(*slot)).unwrap_or(slot) } else { slot }
    }
}

#[cfg(test)]
mod tests;
