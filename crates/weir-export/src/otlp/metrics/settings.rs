use std::time::Duration;

use crate::otlp::settings::ExportSettings;

#[derive(Clone, Debug)]
pub struct MetricSettings {
    pub resource: Vec<(String, String)>,
    pub export: ExportSettings,
    /// `OTEL_METRIC_EXPORT_INTERVAL`: the time between two exports.
    pub interval: Duration,
    /// `OTEL_METRIC_EXPORT_TIMEOUT`: how long an export may take.
    pub timeout: Duration,
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
