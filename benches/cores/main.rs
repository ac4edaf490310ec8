//! Measures how decisions in this process scale over threads: on keys of their own, on one key, and with a limiter
//! each, which is the most that the machine can do. Counters are in memory, or under `lease` in a simulated store.
//!
//! `cargo bench --bench cores`

mod leased;

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use leased::{Leased, StoreRuntime};
use weir_benches::in_process::{InProcess, NOW};

/// Decisions of each thread in a round.
const DECISIONS: u32 = 1_000_000;

/// Rounds of each case, in turn, so that each meets the same machine.
const ROUNDS: usize = 7;

/// What the threads of a case share.
#[derive(Clone, Copy)]
enum Shared {
    OwnLimiters,
    OwnKeys,
    OneKey,
}

const CASES: [(&str, Shared); 3] = [
    ("a limiter each", Shared::OwnLimiters),
    ("one limiter, a key each", Shared::OwnKeys),
    ("one limiter, one key", Shared::OneKey),
];

/// What decides.
trait Decides: Sync {
    /// Creates a limiter.
    fn create(store: &StoreRuntime) -> Self;

    /// Decides one hit of `tenant`, and returns whether it is admitted.
    fn admits(&self, tenant: &str) -> bool;
}

impl Decides for InProcess {
    fn create(_: &StoreRuntime) -> Self {
        Self::new("tenant-0")
    }

    fn admits(&self, tenant: &str) -> bool {
        self.admits(tenant, NOW)
    }
}

impl Decides for Leased {
    fn create(store: &StoreRuntime) -> Self {
        Self::new(store)
    }

    fn admits(&self, tenant: &str) -> bool {
        self.admits(tenant)
    }
}

/// Returns the time in which all `threads` have made their decisions.
fn run<L: Decides>(shared: Shared, threads: usize, store: &StoreRuntime) -> Duration {
    let limiters: Vec<L> = (0..threads).map(|_| L::create(store)).collect();
    let start = Barrier::new(threads + 1);
    let begun = thread::scope(|scope| {
        for i in 0..threads {
            let (limiter, tenant) = match shared {
                Shared::OwnLimiters => (&limiters[i], i),
                Shared::OwnKeys => (&limiters[0], i),
                Shared::OneKey => (&limiters[0], 0),
            };
            let (tenant, start) = (format!("tenant-{tenant}"), &start);
            scope.spawn(move || {
                let _entered = store.enter();
                // the counter is there
                assert!(limiter.admits(&tenant));
                start.wait();
                for _ in 0..DECISIONS {
                    assert!(black_box(limiter).admits(black_box(&tenant)));
                }
            });
        }
        start.wait();
        Instant::now()
    });
    // all have ended
    begun.elapsed()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the rows of `threads`. All ratios are of times of the same round, since the machine may be another one in the
/// next.
fn measure<L: Decides>(mode: &str, threads: usize, store: &StoreRuntime) {
    let (mut alone, mut times) = (Vec::new(), CASES.map(|_| Vec::new()));
    for _ in 0..ROUNDS {
        alone.push(run::<L>(Shared::OneKey, 1, store).as_secs_f64());
        for (times, (_, shared)) in times.iter_mut().zip(CASES) {
            times.push(run::<L>(shared, threads, store).as_secs_f64());
        }
    }
    let control = times[0].clone();
    for (times, (name, _)) in times.iter().zip(CASES) {
        let ratio = |of: &[f64]| median(of.iter().zip(times).map(|(of, time)| of / time));
        let scaled = ratio(&alone) * u32::try_from(threads).map_or(f64::NAN, f64::from);
        let nanos = median(times.iter().copied()) * 1e9 / f64::from(DECISIONS);
        println!(
            "| {mode} | {threads} | {name} | {nanos:.0} | {scaled:.2} | {:.0} % |",
            ratio(&control) * 100.0
        );
    }
}

fn main() {
    let most = thread::available_parallelism().map_or(1, usize::from);
    println!(
        "| counters | threads | | ns a decision | throughput to one thread's | to a limiter each |\n\
         | --- | --- | --- | --- | --- | --- |"
    );
    let store = StoreRuntime::start();
    let mut threads = 1;
    while threads <= most {
        measure::<InProcess>("in memory", threads, &store);
        measure::<Leased>("`lease`", threads, &store);
        threads *= 2;
    }
}
