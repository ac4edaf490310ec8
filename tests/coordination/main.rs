//! Tests of coordination: several instances share a limit through a simulated store, in simulated time.

mod auto;
mod bounds;
mod churn;
mod far;
mod fleet;
mod metrics;
mod outage;
mod reservations;
mod silence;
mod starvation;
mod strict;
mod unsupported;
