//! Measures how decisions in this process scale over threads: on keys of their own, on one key, and with a limiter each, which is the
//! most that the machine can do.
//!
//! `cargo bench --bench cores`

#[path = "support/in_process.rs"]
mod in_process;

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use in_process::{InProcess, NOW};

/// Decisions of each thread in a round.
const DECISIONS: u32 = 1_000_000;

/// Rounds of each case, in turn, so that each meets the same machine.
const ROUNDS: usize = 7;

/// What the threads of a case share.
#[derive(Clone, Copy)]
enum Case {
    OwnLimiters,
    OwnKeys,
    OneKey,
}

const CASES: [(&str, Case); 3] = [
    ("a limiter each", Case::OwnLimiters),
    ("one limiter, a key each", Case::OwnKeys),
    ("one limiter, one key", Case::OneKey),
];

impl Case {
    /// Returns the time in which all `threads` have made their decisions.
    fn run(self, threads: usize) -> Duration {
        let limiters: Vec<_> = (0..threads).map(|_| InProcess::new("tenant-0")).collect();
        let start = Barrier::new(threads + 1);
        let begun = thread::scope(|scope| {
            for i in 0..threads {
                let (limiter, tenant) = match self {
                    Self::OwnLimiters => (&limiters[i], i),
                    Self::OwnKeys => (&limiters[0], i),
                    Self::OneKey => (&limiters[0], 0),
                };
                let (tenant, start) = (format!("tenant-{tenant}"), &start);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..DECISIONS {
                        assert!(black_box(limiter).admits(black_box(&tenant), NOW));
                    }
                });
            }
            start.wait();
            Instant::now()
        });
        // all have ended
        begun.elapsed()
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let most = thread::available_parallelism().map_or(1, usize::from);
    let mut threads = 1;
    println!(
        "| threads | | ns a decision | throughput to one thread's | to a limiter each |\n| --- | --- | --- | --- | --- |"
    );
    let mut alone = [0.0; CASES.len()];
    while threads <= most {
        let mut times = CASES.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (times, (_, case)) in times.iter_mut().zip(CASES) {
                times.push(case.run(threads).as_secs_f64());
            }
        }
        let control = times[0].clone();
        for ((times, alone), (name, _)) in times.iter().zip(&mut alone).zip(CASES) {
            let time = median(times.iter().copied());
            // of the same round, since the machine may be another one in the next
            let to_control = median(control.iter().zip(times).map(|(control, time)| control / time));
            if threads == 1 {
                *alone = time;
            }
            let scaled = *alone / time * u32::try_from(threads).map_or(f64::NAN, f64::from);
            let nanos = time * 1e9 / f64::from(DECISIONS);
            println!("| {threads} | {name} | {nanos:.0} | {scaled:.2} | {:.0} % |", to_control * 100.0);
        }
        threads *= 2;
    }
}
