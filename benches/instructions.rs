//! Counts the instructions of a decision by each algorithm, of one in each coordination mode, and of a request from its bytes to
//! those of its response.
//! Unlike times, the counts do not depend on the machine or its other load.
//!
//! `make instructions`; it needs valgrind. Gungraun's runner must have the version in `Cargo.lock`: make installs it.

#![allow(missing_docs, reason = "the macros make public items")]

mod support;

#[path = "support/coordinated.rs"]
mod coordinated;
#[path = "support/exchange.rs"]
mod exchange;
#[path = "support/in_process.rs"]
mod in_process;
#[path = "support/of_key.rs"]
mod of_key;
#[path = "support/pool.rs"]
mod pool;
#[path = "support/waiting.rs"]
mod waiting;

use std::hint::black_box;

use bytes::Bytes;
use coordinated::Hit;
use exchange::{AcquireExchange, Exchange, Settled};
use gungraun::{library_benchmark, library_benchmark_group, main};
use in_process::InProcess;
use of_key::OfKey;
use pool::ShareWork;
use support::Case;
use waiting::Waiting;
use weir::limit::Decision;

#[library_benchmark]
#[benches::algorithm(
    args = [
        "fixed_window",
        "sliding_window",
        "token_bucket",
        "token_bucket_step",
        "token_bucket_strict",
        "two_tiers",
        "over_limit",
    ],
    setup = Case::new
)]
fn decide(mut case: Case) -> (Decision, Case) {
    let decision = black_box(black_box(&mut case).decide());
    // returned values are dropped outside of the measurement
    (decision, case)
}

#[library_benchmark]
#[benches::mode(
    args = [
        "local", "local_of_two_windows", "local_of_pool", "interval", "interval_of_bucket", "lease", "lease_of_bucket",
        "lease_of_two_windows", "lease_of_pool",
    ],
    setup = Hit::new
)]
fn coordinate(hit: Hit) -> (Decision, Hit) {
    let decision = black_box(&hit).decide();
    (decision, hit)
}

// A thousand keys with so many hits each, all of which wait under `strict`, and the first of each key under `lease`. Includes what
// follows in the background, until the counters are removed.
#[library_benchmark]
#[benches::mode_and_hits(
    args = [
        "interval_1", "lease_1", "strict_1", "interval_10", "lease_10", "strict_10",
        "lone_lease_1", "lone_strict_1", "lone_lease_10", "lone_strict_10",
    ],
    setup = Waiting::new
)]
fn new_keys(waiting: Waiting) -> (usize, Waiting) {
    let admitted = black_box(&waiting).run();
    (admitted, waiting)
}

// What decisions of a pool of a thousand members do, and what is done beside them. Its lock is held for all but `compute`.
#[library_benchmark]
#[benches::pool(
    args = [
        "decide", "first_of_step", "first_of_cycle", "newcomer", "copy", "compute", "install",
        "sixteen_first_of_step", "sixteen_newcomer",
    ],
    setup = ShareWork::new
)]
fn shares(mut work: ShareWork) -> ShareWork {
    black_box(&mut work).run();
    work
}

#[library_benchmark]
#[benches::request(args = ["one_descriptor", "two_by_three"], setup = Exchange::new)]
fn request(exchange: Exchange) -> (Bytes, Exchange) {
    let response = black_box(&exchange).respond();
    (response, exchange)
}

// Of a caller that may wait, when nobody waits; beside `one_descriptor` of `request`.
#[library_benchmark]
#[benches::acquire(args = ["one_descriptor"], setup = AcquireExchange::new)]
fn acquire(exchange: AcquireExchange) -> (Bytes, AcquireExchange) {
    let response = black_box(&exchange).respond();
    (response, exchange)
}

#[library_benchmark]
#[benches::limiter(args = ["acme"], setup = InProcess::new)]
fn embedded(limiter: InProcess) -> (bool, InProcess) {
    let admitted = black_box(&limiter).admits(black_box("acme"), in_process::NOW);
    (admitted, limiter)
}

#[library_benchmark]
#[benches::key(args = ["acme"], setup = OfKey::new)]
fn prepared_key(limiter: OfKey) -> (bool, OfKey) {
    let admitted = black_box(&limiter).admits(in_process::NOW);
    (admitted, limiter)
}

// Requests for 800 keys, with and without the search for the hottest ones. The difference is what WEIR_HOT_KEYS costs.
#[library_benchmark]
#[benches::hot_keys(args = ["off", "shown"], setup = Settled::new)]
fn hot_keys(settled: Settled) -> Settled {
    black_box(&settled).respond();
    settled
}

library_benchmark_group!(name = decisions, benchmarks = [decide, embedded, prepared_key, shares]);
library_benchmark_group!(name = coordination, benchmarks = [coordinate, new_keys]);
library_benchmark_group!(name = requests, benchmarks = [request, acquire, hot_keys]);
main!(library_benchmark_groups = [decisions, coordination, requests]);
