//! What weir tells of itself: numbers, health and a log.

pub mod counter;
pub mod health;
pub mod histogram;
pub mod log;
pub mod metric;
mod name;
pub mod prometheus;
pub mod readings;
pub mod rule_stats;
pub mod stats;
pub mod statsd;

pub use health::Health;
pub use metric::{Metric, Source};
pub use stats::Stats;
