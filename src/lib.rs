//! The program `weir`: its command line, its settings, and what they start. The parts are crates of their own.

pub mod app;
pub mod command;
#[cfg(any(all(test, debug_assertions), fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod settings;
pub mod simulate;
