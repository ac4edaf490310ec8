//! The algorithms and tiers against their documented properties, on random traffic.

mod bounds;
mod changes;
mod model;
mod promises;
mod support;
