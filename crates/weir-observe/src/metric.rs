//! Metrics under weir's own names, which other parts contribute and envoyproxy/ratelimit does not have.

use super::histogram::Distribution;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name with dots, such as `weir.counters.live`. In Prometheus `_` replaces dots, and an ending is added.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    /// The labels, which distinguish metrics of the same name. Dotted names have no labels: the values are appended.
    pub labels: Vec<(&'static str, String)>,
    /// The value; for timings, their count.
    pub value: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Timing(Box<Distribution>),
}

/// A contributor of metrics, read whenever the stats are reported.
pub trait Source: Send + Sync + 'static {
    /// Returns the current values: always the same names, each with the same kind.
    fn metrics(&self) -> Vec<Metric>;
}

// === impl Metric ===

impl Metric {
    pub const fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, labels: Vec::new(), value }
    }

    pub const fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, labels: Vec::new(), value }
    }

    pub fn timing(name: &'static str, help: &'static str, times: Distribution) -> Self {
        let value = times.count();
        Self { name, help, value, kind: MetricKind::Timing(Box::new(times)), labels: Vec::new() }
    }

    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }
}
