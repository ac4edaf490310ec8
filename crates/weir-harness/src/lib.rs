//! Fixtures of tests and benchmarks of the whole program: weir in the test's process, its messages, its
//! gRPC service without a listener, a collector of traces.

pub mod collector;
pub mod exchange;
pub mod in_process;
pub mod local;
pub mod wire;
