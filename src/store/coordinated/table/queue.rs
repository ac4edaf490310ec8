//! The queue of counters that need attention: a timing wheel.
//!
//! The flush loop takes what is due in chunks, so that no lock is held for longer than that takes, and counters that are due
//! together leave together.

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
const SLOTS: usize = 1_024;

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
    /// The slots, each with chunks of counters.
    slots: Box<[Vec<Vec<CounterKey>>]>,
    /// A bit for each slot that is not empty.
    occupied: [u64; SLOTS / 64],
    /// The counters that are due at once.
    now: Vec<Vec<CounterKey>>,
    /// The number of the first slot that was not taken yet, since the start.
    first: u64,
    /// The slot for which the flush loop wakes up; 0 if it is awake.
    wakes_at: u64,
}

/// Counters that were taken together.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) keys: Vec<CounterKey>,
    /// The slot that held them. None if they were due at once.
    pub(super) slot: Option<Slot>,
}

// === impl AttentionQueue ===

impl AttentionQueue {
    pub(super) fn new() -> Self {
        let wheel = Wheel {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            occupied: [0; SLOTS / 64],
            now: Vec::new(),
            first: 1,
            wakes_at: 0,
        };
        Self { started: Instant::now(), wheel: Mutex::new(wheel), earlier: Notify::new() }
    }

    /// Makes the counter of `key` due with `urgency` after `delay`, rounded to a multiple of `grid`: down, unless nothing of
    /// the delay is left then. Counters with the same grid share a turn, unless too many are due in it. Does nothing if the
    /// counter is due earlier.
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
        let at = now.saturating_add(delay.as_nanos());
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
        add(&mut wheel.now, key);
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

    /// Returns whether the counter of `key`, whose turn has come with `chunk`, is due. Queues it again if it is due later.
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
        let mut wheel = self.wheel.lock();
        wheel.wakes_at = 0;
        if let Some(keys) = wheel.now.pop() {
            return Some(Chunk { keys, slot: None });
        }
        let number = wheel.next_occupied().filter(|number| *number <= last);
        wheel.first = number.unwrap_or(last + 1).max(wheel.first);
        let number = number?;
        wheel.pop(number).map(|keys| Chunk { keys, slot: Some(Slot::of(number)) })
    }

    /// Waits until a counter is due.
    pub(super) async fn wait(&self) {
        let number = {
            let mut wheel = self.wheel.lock();
            wheel.wakes_at = if wheel.now.is_empty() { wheel.next_occupied().unwrap_or(u64::MAX) } else { 0 };
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
        let slot = slot.clamp(self.first, self.first + SLOTS as u64 - 1);
        let index = index(slot);
        add(&mut self.slots[index], key);
        self.occupied[index / 64] |= 1 << (index % 64);
        slot
    }

    /// Takes a chunk of `slot`.
    fn pop(&mut self, slot: u64) -> Option<Vec<CounterKey>> {
        let index = index(slot);
        let keys = self.slots[index].pop();
        if self.slots[index].is_empty() {
            self.occupied[index / 64] &= !(1 << (index % 64));
        }
        keys
    }

    /// Returns the first slot that is not empty.
    fn next_occupied(&self) -> Option<u64> {
        let first = index(self.first);
        let words = self.occupied.len();
        // the first word is visited twice: from its bit on, and at the end up to that bit
        (0..=words).find_map(|turn| {
            let word = (first / 64 + turn) % words;
            let upper = u64::MAX << (first % 64);
            let mask = if turn == 0 {
                upper
            } else if turn == words {
                !upper
            } else {
                u64::MAX
            };
            let bits = self.occupied[word] & mask;
            (bits != 0).then(|| {
                let found = word * 64 + bits.trailing_zeros() as usize;
                self.first + ((found + SLOTS - first) % SLOTS) as u64
            })
        })
    }

    /// Returns `slot`, or, if it has a full chunk, an earlier one of its grid, not before `least`, that has none.
    fn least_full(&self, slot: u64, least: u64, grid: u64) -> u64 {
        let is_full = |slot: u64| self.slots[index(slot)].first().is_some_and(|chunk| chunk.len() == CHUNK);
        let least = least.max(self.first).max((slot + 1).saturating_sub(grid));
        let earlier = || (least..slot).rev().step_by(2);
        if is_full(slot) { earlier().find(|slot| !is_full(*slot)).unwrap_or(slot) } else { slot }
    }
}

/// Returns the index of `slot`.
fn index(slot: u64) -> usize {
    usize::try_from(slot % SLOTS as u64).unwrap_or_default()
}

/// Adds `key` to the last of `chunks`.
fn add(chunks: &mut Vec<Vec<CounterKey>>, key: CounterKey) {
    match chunks.last_mut() {
        Some(chunk) if chunk.len() < CHUNK => chunk.push(key),
        _ => chunks.push(vec![key]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Entry, KeyHasher};

    fn keys(count: u32) -> Vec<CounterKey> {
        let hasher = KeyHasher::random();
        let key = |i: u32| hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None);
        (0..count).map(key).collect()
    }

    fn millis(millis: u64) -> Period {
        Period::from_millis(millis)
    }

    /// Takes what is due, and returns the indexes of the counters that are.
    fn take(queue: &AttentionQueue, keys: &[CounterKey], places: &mut [QueuePlace]) -> Vec<usize> {
        let mut due = Vec::new();
        while let Some(chunk) = queue.take() {
            assert!(chunk.keys.len() <= CHUNK);
            for key in &chunk.keys {
                let i = keys.iter().position(|other| other == key).expect("a known key");
                if queue.is_due(*key, &mut places[i], chunk.slot) {
                    due.push(i);
                }
            }
        }
        due
    }

    fn entries(queue: &AttentionQueue) -> usize {
        let wheel = queue.wheel.lock();
        wheel.slots.iter().chain([&wheel.now]).flatten().map(Vec::len).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn every_counter_is_due_once_at_its_earliest_time() {
        let (queue, keys) = (AttentionQueue::new(), keys(400));
        let mut places = vec![QueuePlace::default(); keys.len()];
        let mut due_at: Vec<Option<(Instant, Instant)>> = vec![None; keys.len()];
        // a linear congruential generator
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..4_000 {
            for _ in 0..random(40) {
                let i = usize::try_from(random(400)).expect("it fits");
                let (delay, grid) = (millis(random(9_000)), millis(5 * (1 + random(20))));
                let now = Instant::now();
                if random(10) == 0 {
                    queue.push(keys[i], &mut places[i], Urgency::Now, delay, grid);
                    due_at[i] = Some((now, now));
                } else {
                    queue.push(keys[i], &mut places[i], Urgency::Pause, delay, grid);
                    // down to a multiple of the grid, or up to the next one
                    let least = (now + delay.into()).checked_sub(grid.into()).expect("it is late enough");
                    let at = (least, now + Duration::from(delay) + Duration::from(grid) + TICK.into());
                    due_at[i] = Some(due_at[i].map_or(at, |(a, b)| (a.min(at.0), b.min(at.1))));
                }
            }
            tokio::time::advance(Duration::from_millis(1 + random(30))).await;
            for i in take(&queue, &keys, &mut places) {
                let (least, _) = due_at[i].take().expect("due once");
                assert!(Instant::now() >= least, "{i} is too early");
            }
            let late = due_at.iter().flatten().filter(|(_, most)| Instant::now() > *most).count();
            assert_eq!(late, 0);
            assert!(entries(&queue) <= 4 * keys.len(), "{}", entries(&queue));
        }
        tokio::time::advance(Duration::from_secs(20)).await;
        let rest = take(&queue, &keys, &mut places).len();
        assert_eq!((rest, entries(&queue)), (due_at.iter().flatten().count(), 0));
    }

    /// A rejected key whose tries make it urgent after every reply takes no more than its two places.
    #[tokio::test(start_paused = true)]
    async fn a_counter_that_is_urgent_again_and_again_is_queued_twice_at_most() {
        let (queue, keys) = (AttentionQueue::new(), keys(1));
        let mut places = [QueuePlace::default()];
        for _ in 0..1_000 {
            queue.push(keys[0], &mut places[0], Urgency::Pause, millis(1_000), millis(100));
            queue.push(keys[0], &mut places[0], Urgency::Tick, millis(0), millis(10));
            queue.push(keys[0], &mut places[0], Urgency::Now, millis(0), millis(10));
            assert!(entries(&queue) <= 3, "{}", entries(&queue));
            assert_eq!(take(&queue, &keys, &mut places), [0]);
            tokio::time::advance(Duration::from_millis(3)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_loop_wakes_up_once_for_all_of_a_turn() {
        let (queue, keys) = (AttentionQueue::new(), keys(1_000));
        let mut places = vec![QueuePlace::default(); keys.len()];
        let mut wakes = 0;
        let mut attended = 0;
        let begun = Instant::now();
        while attended < keys.len() {
            if let Some(i) = (attended == 0).then_some(0..keys.len()) {
                for i in i {
                    queue.push(keys[i], &mut places[i], Urgency::Pause, millis(700), millis(100));
                }
            }
            queue.wait().await;
            wakes += 1;
            attended += take(&queue, &keys, &mut places).len();
        }
        // the first push wakes it up to set its timer; a full turn spreads over others
        assert!(wakes <= 6, "{wakes}");
        assert!(begun.elapsed() >= Duration::from_millis(600));
    }
}
