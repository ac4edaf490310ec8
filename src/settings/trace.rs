//! Reads the variables of envoyproxy/ratelimit for traces, and those of OpenTelemetry for their batches.

use weir_export::{
    otlp::OtlpProtocol,
    trace::{BatchSettings, TraceSettings},
};

use super::{
    otlp::{self, Signal, millis},
    parse,
    reader::SettingReader,
    stores::Backend,
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
    let protocols = [("http", OtlpProtocol::Http), ("grpc", OtlpProtocol::Grpc)];
    let own = read.optional("TRACING_EXPORTER_PROTOCOL", |text| parse::choice(text, &protocols));
    let protocol = own.unwrap_or(of_otel);
    let (store, wait) = backend.span();
    Some(TraceSettings {
        resource: otlp::resource(read, instance),
        sampling_rate: sampling_rate(read, warnings),
        descriptor_values,
        store,
        wait,
        export: otlp::export(read, Signal::Traces, protocol, warnings),
        batch: batch(read, warnings),
    })
}

fn sampling_rate(read: &mut SettingReader<'_>, warnings: &mut Vec<String>) -> f64 {
    let rate: f64 = read.parsed("TRACING_SAMPLING_RATE", |text| {
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
    let mut spans = |variable| read.parsed(variable, parse::count_to(MAX_QUEUE, "spans"));
    let (queue, export) = (spans("OTEL_BSP_MAX_QUEUE_SIZE"), spans("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"));
    if export > queue && read.is_given("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") {
        warnings.push(format!(
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {export}, which counts as {queue}: it is at most OTEL_BSP_MAX_QUEUE_SIZE"
        ));
    }
    BatchSettings {
        queue,
        export: export.min(queue),
        delay: read.parsed("OTEL_BSP_SCHEDULE_DELAY", millis),
        timeout: read.parsed("OTEL_BSP_EXPORT_TIMEOUT", millis),
    }
}

#[cfg(test)]
mod tests;
