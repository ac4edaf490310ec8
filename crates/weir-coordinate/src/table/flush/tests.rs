use proptest::prelude::*;
use tokio::time::{Duration, sleep_until};

use super::*;
use weir_limit::{Entry, KeyHasher};

const MOST: usize = 32;

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
    loop {
        let taken = queue.take(MOST, Instant::now());
        assert!(taken.len() <= MOST);
        if taken.is_empty() {
            due.sort_unstable();
            return due;
        }
        for (at, key) in taken {
            let i = keys.iter().position(|other| *other == key).expect("a known key");
            if places[i].take_turn(at) {
                due.push(i);
            }
        }
    }
}

impl AttentionQueue {
    pub(in crate::table) fn entries(&self) -> usize {
        self.due.lock().len()
    }

    async fn wait(&self) {
        let next = self.next().unwrap_or_else(|| Instant::now() + Duration::from_secs(1));
        tokio::select! {
            biased;
            () = sleep_until(next) => {}
            () = self.earlier.notified() => {}
        }
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
                queue.push(keys[i], &mut places[i], FlushUrgency::Now, delay, grid);
                due_at[i] = Some((now, now));
            } else {
                queue.push(keys[i], &mut places[i], FlushUrgency::Pause, delay, grid);
                // down to a multiple of the grid, or up to the next one
                let least = (now + delay.into()).checked_sub(grid.into()).expect("it is late enough");
                let at = (least, now + Duration::from(delay) + Duration::from(grid));
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
        assert!(queue.entries() <= keys.len(), "{}", queue.entries());
    }
    tokio::time::advance(Duration::from_secs(20)).await;
    let rest = take(&queue, &keys, &mut places).len();
    assert_eq!((rest, queue.entries()), (due_at.iter().flatten().count(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_counter_that_is_urgent_again_and_again_is_queued_once() {
    let (queue, keys) = (AttentionQueue::new(), keys(1));
    let mut places = [QueuePlace::default()];
    for _ in 0..1_000 {
        queue.push(keys[0], &mut places[0], FlushUrgency::Pause, millis(1_000), millis(100));
        queue.push(keys[0], &mut places[0], FlushUrgency::Tick, millis(0), millis(10));
        queue.push(keys[0], &mut places[0], FlushUrgency::Now, millis(0), millis(10));
        assert_eq!(queue.entries(), 1);
        assert_eq!((take(&queue, &keys, &mut places), queue.entries()), (vec![0], 0));
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
                queue.push(keys[i], &mut places[i], FlushUrgency::Pause, millis(700), millis(100));
            }
        }
        queue.wait().await;
        wakes += 1;
        attended += take(&queue, &keys, &mut places).len();
    }
    // the first push wakes it up to set its timer
    assert_eq!(wakes, 2);
    assert!(begun.elapsed() >= Duration::from_millis(600));
}

/// Other threads push while the loop is awake, and while it sleeps.
#[tokio::test(start_paused = true)]
async fn the_loop_wakes_up_for_what_is_due_earlier() {
    let (queue, keys) = (AttentionQueue::new(), keys(7));
    let mut places = vec![QueuePlace::default(); keys.len()];
    let begun = Instant::now();
    queue.push(keys[0], &mut places[0], FlushUrgency::Now, millis(0), millis(10));
    assert_eq!(take(&queue, &keys, &mut places), [0]);
    queue.push(keys[1], &mut places[1], FlushUrgency::Pause, millis(700), millis(100));
    // 100 ms after it went to sleep
    for (pushed, urgency, delay, woken, due) in [
        (2..4, FlushUrgency::Tick, 0, 105, vec![2, 3]),
        (4..6, FlushUrgency::Now, 0, 205, vec![4, 5]),
        // in the turn for which it wakes up anyway
        (6..7, FlushUrgency::Pause, 395, 700, vec![1, 6]),
    ] {
        let pushing = async {
            tokio::time::sleep(millis(100).into()).await;
            pushed
                .map(|i| {
                    let mut place = QueuePlace::default();
                    queue.push(keys[i], &mut place, urgency, millis(delay), millis(5));
                    (i, place)
                })
                .collect::<Vec<_>>()
        };
        let waiting = async {
            loop {
                queue.wait().await;
                if queue.next().is_some_and(|next| next <= Instant::now()) {
                    break;
                }
            }
        };
        let ((), pushed) = tokio::join!(waiting, pushing);
        for (i, place) in pushed {
            places[i] = place;
        }
        assert_eq!((begun.elapsed().as_millis(), take(&queue, &keys, &mut places)), (woken, due));
    }
}

proptest! {
    /// A delay is rounded down to a multiple of the grid, unless nothing is left of it then.
    #[test]
    fn counters_are_due_at_multiples_of_their_grid(
        passed in 0..2_000_000_u64,
        delay in 0..2_000_000_u64,
        grid in 1..100_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let due = runtime.expect("a runtime").block_on(async {
            let queue = AttentionQueue::new();
            tokio::time::advance(Duration::from_micros(passed)).await;
            let (delay, grid) = (Period::from_nanos(delay * 1_000), millis(grid));
            queue.push(keys(1)[0], &mut QueuePlace::default(), FlushUrgency::Pause, delay, grid);
            queue.due.lock().first().expect("it is queued").0 * UNIT
        });
        let (grid, at, due) = (grid * 1_000, passed + delay, due / 1_000);
        prop_assert_eq!(due % grid, 0);
        prop_assert!(due > passed, "{due} is not after {passed}");
        prop_assert!(due <= at || due - grid <= passed, "{due} is too late for {at}");
        prop_assert!(due + grid > at, "{due} is too early for {at}");
    }
}

#[test]
fn a_counter_is_due_for_what_is_less_urgent_too() {
    let mut place = QueuePlace::default();
    assert!(!place.is_due_for(FlushUrgency::Idle), "it needs no attention");
    assert!(place.make_due(9, FlushUrgency::Interval));
    let less = [FlushUrgency::Idle, FlushUrgency::Pause, FlushUrgency::Interval];
    assert_eq!(less.map(|urgency| place.is_due_for(urgency)), [true; 3]);
    let more = [FlushUrgency::Tick, FlushUrgency::Now];
    assert_eq!(more.map(|urgency| place.is_due_for(urgency)), [false, false]);
    // the next hit that is as urgent need not find out that the counter is due earlier
    assert!(!place.make_due(9, FlushUrgency::Tick));
    assert_eq!(more.map(|urgency| place.is_due_for(urgency)), [true, false]);
    assert!(place.make_due(8, FlushUrgency::Idle), "earlier");
}

/// One of the same key was evicted while it was due.
#[test]
fn the_turn_of_an_evicted_counter_is_not_that_of_its_successor() {
    let mut place = QueuePlace::default();
    assert!(!place.take_turn(9));
    assert!(place.make_due(9, FlushUrgency::Pause));
    assert!(!place.take_turn(8));
    assert!(place.take_turn(9) && !place.take_turn(9), "once");
}

#[test]
fn the_more_counters_there_are_the_longer_each_waits_for_a_node_that_does_not_reply() {
    let pauses = [0, 10_000, 100_000, 499_999].map(outage_pause);
    assert_eq!(pauses.map(|pause| pause.as_nanos() / 10_000), [10_000, 10_000, 100_000, 499_999]);
}
