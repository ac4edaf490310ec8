//! The stats in Prometheus' text format.
//!
//! `render` writes the page, by default under the names and labels that envoyproxy/ratelimit's mapping gives its stats.
//! A mapper file replaces these: `mapper` has its rules, `template` their texts, and `mapped` the series that they
//! make.

mod mapped;
pub mod mapper;
mod page;
mod render;
mod template;

pub use mapped::RESERVED;
pub use page::{CONTENT_TYPE, TimeUnit};
pub use render::{MetricNames, render};
pub use template::Template;
