//! A decision by each algorithm, and a request from its bytes to those of its response, in instructions: the
//! same on every machine and on a noisy one.
//!
//! `make instructions`; it needs valgrind. Gungraun's runner must be of the version that `Cargo.lock` has: make installs
//! it.

#![allow(missing_docs, reason = "the macros make public items")]

mod support;

#[path = "support/checks.rs"]
mod checks;

use std::hint::black_box;

use bytes::Bytes;
use checks::Check;
use gungraun::{library_benchmark, library_benchmark_group, main};
use support::Case;
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
    let taken = black_box(black_box(&mut case).decide());
    // what is handed out is freed by somebody else, and not measured
    (taken, case)
}

#[library_benchmark]
#[benches::request(args = ["one_descriptor", "two_by_three"], setup = Check::new)]
fn request(check: Check) -> (Bytes, Check) {
    let answer = black_box(&check).answer();
    (answer, check)
}

library_benchmark_group!(name = decisions, benchmarks = [decide]);
library_benchmark_group!(name = requests, benchmarks = [request]);
main!(library_benchmark_groups = [decisions, requests]);
