//! Metrics under weir's own names, which other parts contribute and envoyproxy/ratelimit does not have.

use super::histogram::Distribution;

/// One value under one of weir's own names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name with dots, such as `weir.counters.live`. In Prometheus `_` replaces dots, and an ending is added.
    pub name: &'static str,
    /// The help text, in a few words.
    pub help: &'static str,
    /// The kind of value.
    pub kind: MetricKind,
    /// The labels, which distinguish metrics of the same name. Dotted names have no labels: the values are appended.
    pub labels: Vec<(&'static str, String)>,
    /// The value; for timings, their count.
    pub value: u64,
}

/// The kind of value that a [`Metric`] has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Durations, by their length.
    Timing(Box<Distribution>),
}

/// A contributor of metrics, read whenever the stats are reported.
pub trait Source: Send + Sync + 'static {
    /// Returns the current values: always the same names, each with the same kind.
    fn metrics(&self) -> Vec<Metric>;
}

// === impl Metric ===

impl Metric {
    /// Returns a gauge without labels.
    pub const fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, labels: Vec::new(), value }
    }

    /// Returns a counter without labels.
    pub const fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, labels: Vec::new(), value }
    }

    /// Returns a timing without labels.
    pub fn timing(name: &'static str, help: &'static str, times: Distribution) -> Self {
        let value = times.count();
        Self { name, help, value, kind: MetricKind::Timing(Box::new(times)), labels: Vec::new() }
    }

    /// Adds a label.
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }
}
