//! Callers that wait, on a limiter in memory whose clock the test sets: which requests wait, in which order they are
//! served, and what reloads, a stop and other callers do to them.

mod disk;
mod in_flight;
mod library;
mod lines;
mod reloads;
mod shared;
mod support;
