//! What weir tells of itself.

pub mod stats;

pub use stats::Stats;
