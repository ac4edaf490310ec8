//! Measures the time of a decision by each algorithm, and the size of its state.
//!
//! `cargo bench --bench decisions`

mod support;

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use support::Case;
use weir::limit::Period;

/// The names of all cases.
const NAMES: [&str; 7] = [
    "fixed_window",
    "sliding_window",
    "token_bucket",
    "token_bucket_step",
    "token_bucket_strict",
    "two_tiers",
    "over_limit",
];

/// Returns the size of the counters, including the heap, in bytes.
fn state_bytes(case: &Case) -> u64 {
    let copied = allocation_counter::measure(|| {
        black_box(case.counters.clone());
    });
    copied.bytes_total
}

fn decide(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    for name in NAMES {
        let mut case = Case::new(name);
        println!("decide/{name}: {} bytes of state", state_bytes(&case));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                case.now = case.now.after(Period::from_nanos(50));
                black_box(black_box(&mut case).decide())
            });
        });
    }
    group.finish();
}

fn configured() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}

criterion_group! { name = benches; config = configured(); targets = decide }
criterion_main!(benches);
