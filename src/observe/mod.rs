//! Metrics, health and logging.
//!
//! Nothing here imports another part of weir: an owner of metrics implements [`Source`] and registers itself with
//! [`Stats::register`].

mod buckets;
mod busy_counter;
mod caller_names;
pub mod counter;
mod decision_record;
#[cfg(feature = "server")]
pub mod health;
pub mod histogram;
pub mod hot_keys;
#[cfg(feature = "server")]
pub mod log;
pub mod method_stats;
pub mod metric;
#[cfg(feature = "server")]
mod plain_fields;
#[cfg(feature = "server")]
mod process;
#[cfg(feature = "server")]
pub mod prometheus;
#[cfg(feature = "server")]
mod refined;
mod rule_limit;
mod rule_stats;
#[cfg(feature = "server")]
mod sanitize;
mod sharded;
#[cfg(feature = "server")]
pub mod snapshot;
pub mod stats;
#[cfg(feature = "server")]
pub mod statsd;
pub mod text;
#[cfg(any(feature = "coordinated", feature = "disk"))]
pub mod throttle;

pub use busy_counter::BusyCounter;
pub use counter::{Counter, Gauge};
pub use decision_record::{DecisionRecord, RecordedDecision, StoreWait};
#[cfg(feature = "server")]
pub use health::Health;
pub use method_stats::MethodStats;
pub use metric::{Metric, Source};
#[cfg(feature = "server")]
pub use refined::Refinement;
pub use rule_limit::RuleLimit;
pub use rule_stats::{OwnCounts, RareCounts, RuleCounts, RuleStats, ShadowCounts};
pub use stats::Stats;
