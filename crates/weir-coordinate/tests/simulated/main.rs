//! Tests of the simulated store: the effects of its operations on counters, and of its network and failures on calls.

mod grants;
mod network;
mod operations;
mod ops;
mod reports;
mod support;
