use proptest::{collection::vec, prelude::*};

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

fn take(queue: &AttentionQueue, keys: &[CounterKey], places: &mut [QueuePlace]) -> Vec<usize> {
    let mut due = Vec::new();
    while let Some((shards, slot)) = queue.take() {
        assert!(shards.len() <= CHUNK);
        for shard in &shards {
            let i = keys.iter().position(|key| key.shard() == *shard).expect("a known key");
            if queue.is_due(keys[i], &mut places[i], slot) {
                due.push(i);
            }
        }
    }
    due
}

impl AttentionQueue {
    pub(in super::super) fn entries(&self) -> usize {
        self.slots.lock().counters.values().map(Vec::len).sum()
    }

    /// Returns for how many ticks it was not taken.
    pub(in super::super) fn ticks_behind(&self) -> u64 {
        (self.elapsed() / TICK.as_nanos()).saturating_sub(self.slots.lock().first)
    }
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
        assert!(queue.entries() <= 4 * keys.len(), "{}", queue.entries());
    }
    tokio::time::advance(Duration::from_secs(20)).await;
    let rest = take(&queue, &keys, &mut places).len();
    assert_eq!((rest, queue.entries()), (due_at.iter().flatten().count(), 0));
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
        assert!(queue.entries() <= 3, "{}", queue.entries());
        let first = queue.slots.lock().first;
        assert_eq!(take(&queue, &keys, &mut places), [0]);
        assert!(queue.slots.lock().first >= first, "what is due at once sets nothing back");
        tokio::time::advance(Duration::from_millis(3)).await;
    }
}

/// As the lease of a long window is, that an instance alone may keep.
#[tokio::test(start_paused = true)]
async fn a_counter_that_is_due_in_a_year_is_looked_at_after_two_hours() {
    let (queue, keys) = (AttentionQueue::new(), keys(1));
    let mut places = [QueuePlace::default()];
    queue.push(keys[0], &mut places[0], Urgency::Lease, Period::from_secs(365 * 86_400), millis(100));
    let mut due = Vec::new();
    for seconds in (5..=7_300).step_by(5) {
        tokio::time::advance(Duration::from_secs(5)).await;
        due.extend(take(&queue, &keys, &mut places).into_iter().map(|_| seconds));
        assert!(queue.entries() <= 1);
    }
    assert_eq!((due, queue.entries()), (vec![7_200], 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_turn_spreads_over_the_slots_before_it_that_are_still_to_come() {
    let (queue, keys) = (AttentionQueue::new(), keys(3 * 256));
    let mut places = vec![QueuePlace::default(); keys.len()];
    // in slot 17, which nobody has taken yet
    tokio::time::advance(Duration::from_millis(85)).await;
    for (key, place) in keys.iter().zip(&mut places) {
        queue.push(*key, place, Urgency::Pause, millis(15), millis(100));
    }
    let slots = queue.slots.lock();
    let counts: Vec<(u64, usize)> =
        slots.counters.iter().map(|(slot, counters)| (*slot, counters.len())).collect();
    assert_eq!(counts, [(19, CHUNK), (20, 2 * CHUNK)]);
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

/// Other threads push while the loop is awake, and while it sleeps.
#[tokio::test(start_paused = true)]
async fn the_loop_wakes_up_once_for_what_is_due_earlier() {
    let (queue, keys) = (AttentionQueue::new(), keys(7));
    let mut places = vec![QueuePlace::default(); keys.len()];
    let begun = Instant::now();
    let at = || begun.elapsed().as_millis();
    queue.push(keys[0], &mut places[0], Urgency::Now, millis(0), millis(10));
    tokio::time::timeout(millis(1_000).into(), queue.wait()).await.expect("it does not sleep");
    assert_eq!((at(), take(&queue, &keys, &mut places)), (0, vec![0]));
    queue.push(keys[1], &mut places[1], Urgency::Pause, millis(700), millis(100));
    // 100 ms after it went to sleep, if at all
    for (pushed, urgency, delay, woken, due) in [
        (2..4, Urgency::Tick, 5, 100, vec![]),
        (4..4, Urgency::Tick, 0, 105, vec![2, 3]),
        (4..6, Urgency::Now, 0, 205, vec![4, 5]),
        // in the turn for which it wakes up anyway
        (6..7, Urgency::Pause, 395, 700, vec![1, 6]),
    ] {
        let pushing = async {
            if !pushed.is_empty() {
                tokio::time::sleep(millis(100).into()).await;
            }
            for i in pushed {
                queue.push(keys[i], &mut places[i], urgency, millis(delay), millis(5));
            }
        };
        tokio::join!(queue.wait(), pushing);
        assert_eq!((at(), take(&queue, &keys, &mut places)), (woken, due));
    }
}

proptest! {
    #[test]
    fn a_full_slot_is_replaced_by_an_earlier_one_of_its_turn(
        counts in vec(prop_oneof![Just(CHUNK - 1), Just(CHUNK), Just(CHUNK + 1)], 64),
        slot in 1..64_u64,
        least in 0..64_u64,
        grid in 1..32_u64,
    ) {
        let mut slots = AttentionQueue::new().slots.into_inner();
        slots.counters = (0..).zip(counts.iter().map(|count| vec![0; *count])).collect();
        let is_full = |slot: u64| counts[usize::try_from(slot).expect("it fits")] >= CHUNK;
        let found = slots.least_full(slot, least, grid);
        // the slots of a turn end with the one that is a multiple of the grid
        let is_possible = |other: u64| other >= least.max(1) && other + grid > slot;
        if is_full(slot) {
            let free = (1..slot).rev().filter(|other| (slot - other) % 2 == 1 && is_possible(*other));
            prop_assert_eq!(found, free.into_iter().find(|other| !is_full(*other)).unwrap_or(slot));
        } else {
            prop_assert_eq!(found, slot);
        }
    }

    /// A delay is rounded down to a multiple of the grid, unless nothing is left of it then.
    #[test]
    fn counters_are_due_at_multiples_of_their_grid(
        passed in 0..2_000_000_u64,
        delay in 0..2_000_000_u64,
        grid in 0..100_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let number = runtime.expect("a runtime").block_on(async {
            let queue = AttentionQueue::new();
            tokio::time::advance(Duration::from_micros(passed)).await;
            queue.take();
            let (delay, grid) = (Period::from_nanos(delay * 1_000), millis(grid));
            queue.push(keys(1)[0], &mut QueuePlace::default(), Urgency::Pause, delay, grid);
            *queue.slots.lock().counters.keys().next().expect("it is queued")
        });
        let (grid, at) = ((grid / 5).max(1) * 5_000, passed + delay);
        let due = number * 5_000;
        prop_assert_eq!(due % grid, 0);
        prop_assert!(due > passed || due == at, "{due} is not after {passed}");
        prop_assert!(due <= at || due - grid <= passed, "{due} is too late for {at}");
        prop_assert!(due + grid > at, "{due} is too early for {at}");
    }
}
