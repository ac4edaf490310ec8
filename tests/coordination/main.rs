//! Tests of coordination: many instances share a limit through a simulated store, in simulated time.

mod bounds;
mod far;
mod fleet;
mod metrics;
mod outage;
mod reservations;
mod silence;
mod strict;
mod unsupported;
