//! Requests in flight that reserve hits, in random orders of all tasks, also between two locks: ends that cross their starts,
//! ends that come twice, and callers that leave. No more run than may, and what was reserved comes back at most once.

#[path = "../../crates/weir-coordinate/tests/places/fleet.rs"]
#[allow(dead_code, reason = "its other tests use the rest")]
mod fleet;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use shuttle::{
    future::block_on,
    rand::{Rng as _, thread_rng},
    scheduler::RandomScheduler,
};
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};
use weir_coordinate::simulated::Network;
use weir_limit::{InFlight, OnStoreFailure, ReservedHits};

use self::fleet::{Fleet, Instance, limit};

/// The number of random orders.
const RUNS: usize = 200;

const STACK: usize = 256 * 1024;

const REQUESTS: usize = 12;

/// What a request reserves, by its instance.
const RESERVED: [u64; 2] = [1, 1_000];

const AGE: u64 = 600_000;

/// What has happened so far.
#[derive(Default)]
struct Books {
    running: AtomicU64,
    reserved: AtomicU64,
    returned: AtomicU64,
}

impl Books {
    fn give_back(&self, hits: impl IntoIterator<Item = ReservedHits>) {
        let hits = hits.into_iter().map(|returned| returned.hits.0).sum();
        self.returned.fetch_add(hits, Ordering::Relaxed);
    }
}

async fn pause() {
    let yields = thread_rng().gen_range(0..5);
    for _ in 0..yields {
        yield_now().await;
    }
}

async fn call(number: usize, instances: Vec<Arc<Instance>>, books: Arc<Books>, most: u32) {
    pause().await;
    let (here, there) = (&instances[number % 2], &instances[thread_rng().gen_range(0..2)]);
    let (leaves, ends_twice) = (thread_rng().gen_bool(0.2), thread_rng().gen_bool(0.4));
    let patience = Duration::from_millis(if leaves { thread_rng().gen_range(0..6) } else { AGE });
    let taken = timeout(patience, here.take(number as u64 + 1)).await.ok();
    if taken.as_ref().is_some_and(|taken| taken.decisions[0].over) {
        return;
    }
    // of one that leaves, the store may have taken it
    books.reserved.fetch_add(RESERVED[number % 2], Ordering::Relaxed);
    let Some(taken) = taken else { return };
    assert!(books.running.fetch_add(1, Ordering::Relaxed) < most.into(), "more than {most} run");
    pause().await;
    books.running.fetch_sub(1, Ordering::Relaxed);
    if ends_twice {
        books.give_back(there.end(taken.name));
    }
    books.give_back(here.close(Some(taken.name)).await);
}

async fn explore(most: u32) {
    let fleet = Fleet::new(OnStoreFailure::Deny, thread_rng().r#gen(), 0);
    let millis = Duration::from_millis;
    let network = Network { round_trip: millis(2), jitter: millis(8), ..Network::default() };
    let instances = fleet.started(2, network, limit(most, AGE)).await;
    for (instance, hits) in instances.iter().zip(RESERVED) {
        instance.reserved.store(hits, Ordering::Relaxed);
    }
    let books = Arc::new(Books::default());
    let calls =
        (0..REQUESTS).map(|number| tokio::spawn(call(number, instances.clone(), Arc::clone(&books), most)));
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic");
    }
    // late replies have arrived, and what they have brought
    sleep(Duration::from_secs(2)).await;
    tokio::time::slow_down();
    sleep(Duration::from_secs(2)).await;
    assert!(fleet.places().is_empty(), "all have ended");
    for instance in &instances {
        books.give_back(instance.given_up());
    }
    let (returned, reserved) =
        (books.returned.load(Ordering::Relaxed), books.reserved.load(Ordering::Relaxed));
    for one in RESERVED {
        let (returned, reserved) = (returned / one % 1_000, reserved / one % 1_000);
        assert!(returned <= reserved, "{returned} of {reserved} came back");
    }
    // nothing is stuck
    for (number, instance) in instances.iter().enumerate() {
        let taken = instance.take(100 + number as u64).await;
        assert!(!taken.decisions[0].over);
        let returned = instance.close(Some(taken.name)).await;
        // what comes too late for that is given up
        sleep(Duration::from_secs(1)).await;
        let returned: Vec<u64> =
            returned.into_iter().chain(instance.given_up()).map(|returned| returned.hits.0).collect();
        assert_eq!(returned, [RESERVED[number]]);
    }
}

fn check(most: u32) {
    let seed = std::env::var("SHUTTLE_RANDOM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    shuttle::Runner::new(RandomScheduler::new_from_seed(seed, RUNS), config).run(move || {
        tokio::time::restart();
        block_on(async {
            let clock = tokio::spawn(tokio::time::run());
            explore(most).await;
            clock.abort();
        });
    });
}

#[test]
fn no_more_run_than_may_and_hits_come_back_once() {
    check(2);
}

/// Nobody waits for the store to begin.
#[test]
fn ends_that_cross_their_starts_return_hits_once() {
    check(InFlight::UNLIMITED);
}
