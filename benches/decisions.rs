//! Measures the time of a decision by each algorithm, and the size of its state; and of a decision in the process of
//! its caller, beside other crates: governor, and ratelimit, which has no keys.
//!
//! `cargo bench --bench decisions`

use std::{hint::black_box, num::NonZeroU32, time::Duration};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use governor::{Quota, RateLimiter};
use ratelimit::Ratelimiter;
use weir_benches::{case::Case, in_process::InProcess, of_key::OfKey};
use weir_limit::Period;
use weir_store::clock::{Clock as _, SystemClock};

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

/// Decisions about one key, each with a reading of the clock. All of them are admitted.
fn embedded(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("embedded");
    let (tenant, most) = ("acme", u32::MAX);
    let limiter = InProcess::new(tenant);
    group.bench_function("weir, with its request", |bencher| {
        bencher.iter(|| assert!(black_box(&limiter).admits(black_box(tenant), SystemClock.now())));
    });
    let limiter = OfKey::new(tenant);
    group.bench_function("weir, a prepared key", |bencher| {
        bencher.iter(|| assert!(black_box(&limiter).admits(SystemClock.now())));
    });
    let limiter = RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let key = tenant.to_owned();
    group.bench_function("governor, a key", |bencher| {
        bencher.iter(|| assert!(black_box(&limiter).check_key(black_box(&key)).is_ok()));
    });
    let limiter =
        Ratelimiter::builder(u64::from(most)).max_tokens(u64::from(most)).initial_available(u64::from(most));
    let limiter = limiter.build().expect("a valid rate");
    group.bench_function("ratelimit, without keys", |bencher| {
        bencher.iter(|| assert!(black_box(&limiter).try_wait().is_ok()));
    });
    group.finish();
}

fn configured() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}

criterion_group! { name = benches; config = configured(); targets = decide, embedded }
criterion_main!(benches);
