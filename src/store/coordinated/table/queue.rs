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

/// A counter that is due after this time is looked at then, and queued again. Far less than the time for which the
/// order of slots is known.
const LONGEST_DELAY: Period = Period::from_secs(2 * 3_600);

/// The most counters in a chunk.
const CHUNK: usize = 256;

/// The counters that need attention.
#[derive(Debug)]
pub(super) struct AttentionQueue {
    started: Instant,
    wheel: Mutex<Wheel>,
    /// Notified when a counter is due before the flush loop would wake up.
    earlier: Notify,
}

#[derive(Debug)]
struct Wheel {
    /// The slots that are not empty, each with chunks of counters, by the bits of their keys that [`CounterKey::shard`]
    /// returns. All counters of the same entries have the same; the place of each says whether it is queued. A million
    /// counters may be queued, for which half of a key is less memory. Those in slot 0 are due at once.
    slots: BTreeMap<u64, Vec<Vec<u64>>>,
    /// The number of the first slot that was not taken yet, since the start.
    first: u64,
    /// The slot for which the flush loop wakes up; 0 if it is awake.
    wakes_at: u64,
}

/// Counters that were taken together.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The bits that [`CounterKey::shard`] returns for each.
    pub(super) shards: Vec<u64>,
    /// The slot that held them. None if they were due at once.
    pub(super) slot: Option<Slot>,
}

// === impl AttentionQueue ===

impl AttentionQueue {
    pub(super) fn new() -> Self {
        let wheel = Wheel { slots: BTreeMap::new(), first: 1, wakes_at: 0 };
        Self { started: Instant::now(), wheel: Mutex::new(wheel), earlier: Notify::new() }
    }

    /// Makes the counter of `key` due with `urgency` after `delay`, rounded to a multiple of `grid`: down, unless
    /// nothing of the delay is left then. Counters with the same grid share a turn, unless too many are due in it. Does
    /// nothing if the counter is due earlier.
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

    /// Returns whether the counter of `key` is due in the turn of `slot`, in which it or another one of its entries is
    /// queued. Queues it again if it is due later.
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

    /// Waits until a counter is due.
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

    /// Returns the time since the start, in nanoseconds.
    fn elapsed(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

// === impl Wheel ===

impl Wheel {
    /// Adds `key` to `slot`, or to the nearest one that is held. Returns the slot.
    fn push(&mut self, key: CounterKey, slot: u64) -> u64 {
        let slot = slot.clamp(self.first, self.first + SLOTS - 1);
        self.add(key, slot);
        slot
    }

    /// Adds `key` to the last chunk of `slot`.
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
