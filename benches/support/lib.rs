//! What benchmarks share: limiters in the process of their caller, counts of instructions, histograms, frames of HTTP/2.

#![allow(clippy::new_without_default, reason = "a benchmark reads the code, and ends if it cannot go on")]

pub mod callgrind;
pub mod case;
pub mod frame;
pub mod histogram;
pub mod in_process;
pub mod limiter_groups;
pub mod machine;
pub mod of_key;
