//! The stats under Prometheus' names, and their page in its text format.
//!
//! `render` makes each `family` of series, by default under the names and labels that envoyproxy/ratelimit's mapping
//! gives its stats, and `page` writes it. A mapper file replaces these: `mapper` has its rules, `template` their texts,
//! and `mapped` the series that they make.

mod expression;
mod family;
mod mapped;
mod page;
mod render;

pub(crate) use expression::compile;
pub use expression::expression;
pub use family::{Buckets, Family, Kind, Labels, Quantiles, Series, TimeUnit, Value};
pub use page::CONTENT_TYPE;
pub use render::{MetricNames, families, render};
