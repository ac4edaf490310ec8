//! Counts the instructions of a decision by each algorithm, of one in each coordination mode, and of a request from its
//! bytes to those of its response. Unlike times, the counts do not depend on the machine or its other load.
//!
//! `make instructions`; it needs valgrind. With a part of names and a number it fails if a case with such a name takes
//! more instructions, and 3 % besides for other compilers. benches/price holds decisions in the process of their caller
//! to limits.

mod coordinated;
mod pool;
mod waiting;
use std::{env, hint::black_box, process::ExitCode};

use coordinated::Hit;
use pool::ShareWork;
use waiting::Waiting;
use weir_benches::{
    callgrind::{self, Group},
    case::Case,
    limiter_groups::{EMBEDDED, PREPARED_KEY},
};
use weir_harness::exchange::{AcquireExchange, Exchange, Settled};

const GROUPS: [Group; 9] = [
    Group {
        name: "decide",
        prepare: |name| {
            let mut case = Case::new(name);
            Box::new(move || {
                black_box(black_box(&mut case).decide());
            })
        },
        cases: &[
            "fixed_window",
            "sliding_window",
            "token_bucket",
            "token_bucket_step",
            "token_bucket_strict",
            "two_tiers",
            "over_limit",
        ],
    },
    EMBEDDED,
    PREPARED_KEY,
    // What decisions of a pool of a thousand members do, and what is done beside them. Its lock is held for all but
    // `compute`.
    Group {
        name: "shares",
        prepare: |name| {
            let mut work = ShareWork::new(name);
            Box::new(move || black_box(&mut work).run())
        },
        cases: &[
            "decide",
            "first_of_step",
            "first_of_cycle",
            "newcomer",
            "copy",
            "compute",
            "install",
            "sixteen_first_of_step",
            "sixteen_newcomer",
        ],
    },
    Group {
        name: "coordinate",
        prepare: |name| {
            let hit = Hit::new(name);
            Box::new(move || {
                black_box(black_box(&hit).decide());
            })
        },
        cases: &[
            "local",
            "local_of_two_windows",
            "local_of_pool",
            "interval",
            "interval_of_bucket",
            "lease",
            "lease_of_bucket",
            "lease_of_two_windows",
            "lease_of_pool",
        ],
    },
    // A thousand keys with so many hits each, all of which wait under `strict`, and the first of each key under
    // `lease`. Includes what follows in the background, until the counters are removed.
    Group {
        name: "new_keys",
        prepare: |name| {
            let waiting = Waiting::new(name);
            Box::new(move || {
                black_box(black_box(&waiting).run());
            })
        },
        cases: &[
            "interval_1",
            "lease_1",
            "strict_1",
            "interval_10",
            "lease_10",
            "strict_10",
            "lone_lease_1",
            "lone_strict_1",
            "lone_lease_10",
            "lone_strict_10",
        ],
    },
    Group {
        name: "request",
        prepare: |name| {
            let (exchange, mut responses) = (Exchange::new(name), Vec::with_capacity(1));
            Box::new(move || responses.push(black_box(&exchange).respond()))
        },
        // the difference is what WEIR_RECORD costs
        cases: &["one_descriptor", "two_by_three", "recorded_one_descriptor", "recorded_two_by_three"],
    },
    // Of a caller that may wait, when nobody waits; beside `one_descriptor` of `request`.
    Group {
        name: "acquire",
        prepare: |name| {
            let (exchange, mut responses) = (AcquireExchange::new(name), Vec::with_capacity(1));
            Box::new(move || responses.push(black_box(&exchange).respond()))
        },
        cases: &["one_descriptor"],
    },
    // Requests for 800 keys, with and without the search for the hottest ones. The difference is what WEIR_HOT_KEYS
    // costs.
    Group {
        name: "hot_keys",
        prepare: |name| {
            let settled = Settled::new(name);
            Box::new(move || black_box(&settled).respond())
        },
        cases: &["off", "shown"],
    },
];

fn main() -> ExitCode {
    let filter = env::args().nth(1).unwrap_or_default();
    // a process that runs a case has its name there
    let is_case = filter == callgrind::RUN;
    let limit = env::args().nth(2).filter(|_| !is_case);
    let limit = limit.map(|limit| limit.parse::<u64>().expect("a number of instructions"));
    let (mut counted_any, mut exceeds) = (false, false);
    for counted in callgrind::counts(&GROUPS, &filter) {
        match counted {
            Ok((name, instructions)) => {
                println!("{name:32} {instructions:>12}");
                counted_any = true;
                exceeds |= limit.is_some_and(|limit| instructions > limit + limit * 3 / 100);
            }
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if is_case {
        return ExitCode::SUCCESS;
    }
    if !counted_any {
        eprintln!("error: no case is called {filter}");
    } else if exceeds {
        eprintln!("error: more than {} instructions", limit.unwrap_or_default());
    }
    if counted_any && !exceeds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
