//! Many instances, one limit: the real coordination against a simulated store, in simulated time.

mod bounds;
mod far;
mod fleet;
mod metrics;
mod outage;
mod silence;
mod strict;
