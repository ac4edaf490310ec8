//! Many instances, one limit: the real coordination against a simulated store, in simulated time.

mod bounds;
mod far;
mod figures;
mod fleet;
mod outage;
mod silence;
mod strict;
