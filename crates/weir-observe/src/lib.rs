//! What weir counts, without a way out: an owner of metrics implements [`Source`] and registers itself with
//! [`Stats::register`]; the crate `weir-export` shows them.
//!
//! | to | see |
//! | --- | --- |
//! | count | [`Counter`], [`Gauge`], [`BusyCounter`], [`histogram`] |
//! | tell metrics | [`Stats`], [`Source`], [`Metric`], [`Refinement`] |
//! | follow rules | [`RuleStats`], [`PlaceStats`], [`ReserveStats`], [`RuleLimit`], [`hot_keys`] |
//! | follow one request | [`DecisionRecord`] |
//! | name series | [`mapper`], [`template`], [`sanitize`] |
//! | write texts of others | [`text`], [`throttle`], [`spelling`] |

mod caller_names;
pub mod counter;
mod decision_record;
pub mod histogram;
pub mod hot_keys;
pub mod mapper;
pub mod method_stats;
pub mod metric;
mod place_stats;
mod reserve_stats;
pub mod rule_limit;
pub mod rule_stats;
pub mod sanitize;
pub mod sharded;
pub mod spelling;
pub mod stats;
pub mod template;
pub mod text;
pub mod throttle;

pub use counter::{BusyCounter, Counter, Gauge};
pub use decision_record::{DecisionRecord, RecordedDecision, StoreWait};
pub use histogram::Refinement;
pub use method_stats::MethodStats;
pub use metric::{Metric, Source};
pub use place_stats::{PlaceStats, PlaceTotals};
pub use reserve_stats::ReserveStats;
pub use rule_limit::RuleLimit;
pub use rule_stats::{OwnCounts, RareCounts, RuleCounts, RuleStats, ShadowCounts};
pub use stats::Stats;
