//! What weir tells of itself: numbers, health and a log.

pub mod counter;
#[cfg(feature = "server")]
pub mod health;
pub mod histogram;
#[cfg(feature = "server")]
pub mod log;
pub mod metric;
#[cfg(feature = "server")]
mod name;
#[cfg(feature = "server")]
pub mod prometheus;
#[cfg(feature = "server")]
pub mod readings;
pub mod rule_stats;
pub mod stats;
#[cfg(feature = "server")]
pub mod statsd;

#[cfg(feature = "server")]
pub use health::Health;
pub use metric::{Metric, Source};
pub use stats::Stats;
