//! A decision by each algorithm, in instructions: the same on every machine and on a noisy one.
//!
//! `cargo bench --bench instructions`; it needs valgrind, and gungraun's runner (`cargo install gungraun-runner` in the
//! version that `Cargo.lock` has of gungraun).

#![allow(missing_docs, reason = "the macros make public items")]

mod support;

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use support::Case;
use weir::limit::Taken;

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
fn decide(mut case: Case) -> Taken {
    black_box(black_box(&mut case).decide())
}

library_benchmark_group!(name = decisions, benchmarks = [decide]);
main!(library_benchmark_groups = decisions);
