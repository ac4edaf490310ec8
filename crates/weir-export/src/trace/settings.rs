use std::time::Duration;

use crate::otlp::ExportSettings;

#[derive(Clone, Debug)]
pub struct TraceSettings {
    pub resource: Vec<(String, String)>,
    /// The fraction of requests without a parent that are traced, from 0 to 1.
    pub sampling_rate: f64,
    pub descriptor_values: bool,
    /// The store, such as `redis`.
    pub store: &'static str,
    pub wait: &'static str,
    pub export: ExportSettings,
    pub batch: BatchSettings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSettings {
    /// `OTEL_BSP_MAX_QUEUE_SIZE`: the most spans that wait; at least 1. Further ones are dropped.
    pub queue: usize,
    /// `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`: the most spans of one export; from 1 to [`BatchSettings::queue`].
    pub export: usize,
    /// `OTEL_BSP_SCHEDULE_DELAY`: the longest that a span waits for others.
    pub delay: Duration,
    /// `OTEL_BSP_EXPORT_TIMEOUT`: how long an export and its retries may take.
    pub timeout: Duration,
}
