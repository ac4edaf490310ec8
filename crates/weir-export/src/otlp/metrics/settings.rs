//! The settings of exported metrics.

use std::time::Duration;

use crate::otlp::settings::ExportSettings;

/// The settings of exported metrics.
#[derive(Clone, Debug)]
pub struct MetricSettings {
    /// The attributes of this instance.
    pub resource: Vec<(String, String)>,
    /// The collector, and how it is reached.
    pub export: ExportSettings,
    /// `OTEL_METRIC_EXPORT_INTERVAL`: the time between two exports.
    pub interval: Duration,
    /// `OTEL_METRIC_EXPORT_TIMEOUT`: how long an export may take.
    pub timeout: Duration,
    /// What the values of counters and histograms count.
    pub temporality: Temporality,
}

/// What the values of counters and histograms count
/// (<https://opentelemetry.io/docs/specs/otel/metrics/sdk_exporters/otlp/>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temporality {
    /// Everything since the start.
    Cumulative,
    /// What was counted since the last export.
    Delta,
    /// Counters count everything since the start, histograms what was counted since the last export.
    LowMemory,
}
