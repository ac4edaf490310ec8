//! Reads the variables of envoyproxy/ratelimit for traces, and those of OpenTelemetry for their batches.

use std::time::Duration;

use weir_export::{
    otlp::OtlpProtocol,
    trace::{BatchSettings, TraceSettings},
};

use super::{
    backend::Backend,
    otlp::{self, Signal, millis},
    reader::SettingReader,
};

/// A span has up to some ten kilobytes.
const MAX_QUEUE: usize = 1_000_000;

/// None without `TRACING_ENABLED`, as in envoyproxy/ratelimit: many pods have OpenTelemetry's other variables.
pub(super) fn trace(
    read: &mut SettingReader<'_>,
    backend: Backend,
    instance: &str,
    warnings: &mut Vec<String>,
) -> Option<TraceSettings> {
    let is_on = read.bool("TRACING_ENABLED");
    // parsed even without effect, so that typing errors in weir's own variable are reported
    let descriptor_values = read.bool("WEIR_TRACING_DESCRIPTOR_VALUES");
    if !is_on {
        if descriptor_values {
            warnings.push(
                "WEIR_TRACING_DESCRIPTOR_VALUES is set, but has no effect: TRACING_ENABLED is not set".into(),
            );
        }
        return None;
    }
    let of_otel = otlp::protocol(read, Signal::Traces);
    let protocol = read.parsed("TRACING_EXPORTER_PROTOCOL", of_otel, |text| match text {
        "grpc" => Ok(OtlpProtocol::Grpc),
        "http" => Ok(OtlpProtocol::Http),
        _ => Err("http or grpc"),
    });
    Some(TraceSettings {
        resource: otlp::resource(read, instance),
        sampling_rate: sampling_rate(read, warnings),
        descriptor_values,
        store: match backend {
            Backend::Memcached => "memcached",
            Backend::Disk => "disk",
            // in memory, nothing waits
            Backend::Redis | Backend::Memory => "redis",
        },
        export: otlp::export(read, Signal::Traces, protocol, warnings),
        batch: batch(read, warnings),
    })
}

fn sampling_rate(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> f64 {
    let rate: f64 = read.parsed("TRACING_SAMPLING_RATE", 1.0, |text| {
        let rate = text.parse().ok().filter(|rate: &f64| *rate >= 0.0 && rate.is_finite());
        rate.ok_or("a fraction of all requests from 0 to 1, such as 0.1")
    });
    if rate > 1.0 {
        warnings.push(format!(
            "TRACING_SAMPLING_RATE is {rate}, which counts as 1: it is a fraction of all requests, from 0 to 1"
        ));
    }
    rate.min(1.0)
}

fn batch(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> BatchSettings {
    let mut spans = |variable: &str, default: usize| {
        read.parsed(variable, default, |text| {
            let spans = text.parse().ok().filter(|spans| (1..=MAX_QUEUE).contains(spans));
            spans.ok_or("a number of spans, from 1 to 1000000")
        })
    };
    let queue = spans("OTEL_BSP_MAX_QUEUE_SIZE", 2_048);
    let export = spans("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512);
    if export > queue && read.given("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").is_some() {
        warnings.push(format!(
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {export}, which counts as {queue}: it is at most OTEL_BSP_MAX_QUEUE_SIZE"
        ));
    }
    BatchSettings {
        queue,
        export: export.min(queue),
        delay: read.parsed("OTEL_BSP_SCHEDULE_DELAY", Duration::from_secs(5), millis),
        timeout: read.parsed("OTEL_BSP_EXPORT_TIMEOUT", Duration::from_secs(30), millis),
    }
}

#[cfg(test)]
mod tests;
