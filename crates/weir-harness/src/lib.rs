//! Fixtures of tests and benchmarks of the whole program: weir in the test's process, its messages, its
//! gRPC service without a listener, a collector of traces.

#![allow(
    clippy::missing_panics_doc,
    reason = "a test reads the code, and a fixture panics if the test cannot go on"
)]

pub mod collector;
pub mod exchange;
pub mod in_process;
pub mod local;
pub mod wire;
