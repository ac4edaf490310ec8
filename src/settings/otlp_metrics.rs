//! Reads OpenTelemetry's variables for metrics.
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>)

use weir_export::otlp::{MetricSettings, Temporality};

use super::{
    otlp::{self, Signal, millis},
    reader::SettingReader,
};

/// None, whatever other variables say, unless `OTEL_METRICS_EXPORTER` names `otlp`. `instance` is a random id.
pub(super) fn otlp_metrics(
    read: &mut SettingReader<'_>,
    instance: &str,
    warnings: &mut Vec<String>,
) -> Option<MetricSettings> {
    let exporters = read.text("OTEL_METRICS_EXPORTER");
    let exporters: Vec<&str> = exporters.split(',').map(str::trim).collect();
    // environments that many programs share set it, so others are no reason not to start; /metrics is always there
    for exporter in exporters.iter().filter(|name| !["otlp", "none", "prometheus", ""].contains(*name)) {
        warnings.push(format!(
            "OTEL_METRICS_EXPORTER is {exporter:?}, which has no effect: weir knows otlp, and none"
        ));
    }
    if !exporters.contains(&"otlp") {
        return None;
    }
    let histograms = read.text("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION");
    if !histograms.is_empty() && histograms != "explicit_bucket_histogram" {
        warnings.push(format!(
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION is {histograms:?}, which has no effect: histograms have \
             the buckets of /metrics"
        ));
    }
    let protocol = otlp::protocol(read, Signal::Metrics);
    Some(MetricSettings {
        resource: otlp::resource(read, instance),
        export: otlp::export(read, Signal::Metrics, protocol, warnings),
        interval: read.parsed("OTEL_METRIC_EXPORT_INTERVAL", millis),
        timeout: read.parsed("OTEL_METRIC_EXPORT_TIMEOUT", millis),
        temporality: read.choice(
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
            &[
                ("cumulative", Temporality::Cumulative),
                ("delta", Temporality::Delta),
                ("lowmemory", Temporality::LowMemory),
            ],
        ),
    })
}

#[cfg(test)]
mod tests;
