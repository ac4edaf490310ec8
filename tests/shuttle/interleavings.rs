//! Decisions that wait for the store, in random orders of all tasks.

// the same cases as on tokio's scheduler
#[path = "../../crates/weir-coordinate/tests/schedules/waiting.rs"]
mod waiting;

use std::time::Duration;

use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use shuttle::{rand::RngCore as _, scheduler::RandomScheduler};

/// The longest that a decision waits if no wake-up is lost, with time passing at random.
const LONG: Duration = Duration::from_secs(600);

/// An hour, in milliseconds.
const HOUR: u64 = 3_600_000;

/// The number of random cases, each in one random order.
const RUNS: usize = 300;

/// The stack of a task, in bytes. Shuttle's default of 32 KiB is too small for the futures of the decisions of a case.
const STACK: usize = 256 * 1024;

/// Returns the seed of all cases and orders: the same one each time, unless `SHUTTLE_RANDOM_SEED` names another.
fn seed() -> u64 {
    std::env::var("SHUTTLE_RANDOM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Runs a random case with a `budget` in milliseconds.
fn explore(budget: u64, longest: Duration) {
    tokio::time::restart();
    let mut seed = [0; 32];
    shuttle::rand::thread_rng().fill_bytes(&mut seed);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut case = waiting::cases().new_tree(&mut runner).expect("a case").current();
    case.budget = budget;
    shuttle::future::block_on(async {
        let clock = tokio::spawn(tokio::time::run());
        let outcome = waiting::run(&case, longest, tokio::time::slow_down).await;
        clock.abort();
        outcome.unwrap_or_else(|error| panic!("{error}\nin {case:#?}"));
    });
}

/// Runs `explore` in [`RUNS`] random orders.
fn check(explore: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    shuttle::Runner::new(RandomScheduler::new_from_seed(seed(), RUNS), config).run(explore);
}

#[test]
fn every_waiting_decision_ends_and_counts_once() {
    check(|| explore(waiting::BUDGET, Duration::MAX));
}

#[test]
fn no_wake_up_is_lost() {
    check(|| explore(HOUR, LONG));
}
