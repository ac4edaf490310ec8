//! Counts the instructions of decisions in the process of their caller, and fails if they exceed their limits.
//!
//! `make instruction-limits`; it needs valgrind.

mod two_by_three;

use std::{hint::black_box, process::ExitCode};

use two_by_three::TwoByThree;
use weir_benches::{
    callgrind::{self, Group},
    in_process::NOW,
    limiter_groups::{EMBEDDED, PREPARED_KEY},
};

/// The percentage by which a limit may be exceeded, since another patch release of the compiler makes slightly other
/// code.
const TOLERANCE: u64 = 3;

/// The cases, of one kind each.
const GROUPS: [Group; 3] = [
    EMBEDDED,
    PREPARED_KEY,
    // two descriptors of three entries against two tiers, with making the request
    Group {
        name: "two_by_three",
        prepare: |tenant| {
            let (limiter, tenant) = (TwoByThree::new(tenant), tenant.to_owned());
            Box::new(move || assert!(black_box(&limiter).admits(black_box(&tenant), NOW)))
        },
        cases: &["acme"],
    },
];

/// The most instructions of each case.
const LIMITS: [u64; 3] = [930, 235, 3_480];

fn main() -> ExitCode {
    let mut exceeds = false;
    for (counted, limit) in callgrind::counts(&GROUPS, "").zip(LIMITS) {
        match counted {
            Ok((name, instructions)) => {
                println!("{name:20} {instructions:>6} instructions, of {limit}");
                if instructions > limit + limit * TOLERANCE / 100 {
                    eprintln!("error: {name} exceeds its limit in benches/price/main.rs");
                    exceeds = true;
                }
            }
            Err(error) => {
                eprintln!("error: {error}");
                exceeds = true;
            }
        }
    }
    if exceeds { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
