//! Many instances, one limit: the real coordination against a simulated store, in simulated time.

mod bounds;
mod figures;
mod fleet;
mod silence;
