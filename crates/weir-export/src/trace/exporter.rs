//! Sends the batches of OpenTelemetry's processor through its exporter.
//!
//! The processor has a thread, which waits for each export. The exports themselves run on another one, with a runtime
//! for the connections.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    Compression, Protocol as ExporterProtocol, RetryPolicy, SpanExporter as OtlpExporter,
    WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor as _},
};
use parking_lot::Mutex;
use tokio::{runtime::Handle, task::spawn_blocking};

use super::{
    settings::TraceSettings,
    sink::{SpanCounts, SpanSink},
    tracer::Tracer,
};
use crate::otlp::{
    Cause, Endpoint, ExportThread, FLUSH, FailureLog, HttpConnection, OtlpProtocol, Stopping, channel,
    with_headers,
};
use weir_observe::Stats;

/// The pause after a first failed attempt; it doubles with each further one, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct TraceExporter {
    inner: Arc<OtlpExporter>,
    runtime: Handle,
    counts: Arc<SpanCounts>,
    cause: Arc<Cause>,
    log: Mutex<FailureLog>,
}

/// Starts the threads. Returns the tracer whose spans they send. The collector need not be reachable.
pub fn start(settings: TraceSettings, stats: &Stats) -> io::Result<(Arc<Tracer>, ExportThread)> {
    let counts = Arc::new(SpanCounts::default());
    stats.register(&counts);
    let (made, processor) = sync_channel(1);
    let settings = Arc::new(settings);
    let (of_thread, of_exporter) = (Arc::clone(&settings), Arc::clone(&counts));
    let thread = ExportThread::start("weir-traces", async move |stopping| {
        run(&of_thread, of_exporter, made, stopping).await;
    })?;
    let processor = processor.recv().map_err(io::Error::other)?.map_err(io::Error::other)?;
    Ok((Arc::new(Tracer::new(&settings, SpanSink::new(processor, counts))), thread))
}

async fn run(
    settings: &TraceSettings,
    counts: Arc<SpanCounts>,
    made: SyncSender<Result<Arc<BatchSpanProcessor>, String>>,
    mut stopping: Stopping,
) {
    let mut log = FailureLog::new("traces");
    // files that cannot be used are logged before the first span needs them
    if let Err(error) = settings.export.tls().await {
        log.failed(&error.to_string());
    }
    let cause = Arc::new(Cause::default());
    let inner = match exporter(settings, &cause) {
        Ok(inner) => Arc::new(inner),
        Err(error) => return drop(made.send(Err(error))),
    };
    let exporter = TraceExporter { inner, runtime: Handle::current(), counts, cause, log: Mutex::new(log) };
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(settings.batch.queue)
        .with_max_export_batch_size(settings.batch.export)
        .with_scheduled_delay(settings.batch.delay)
        .build();
    let processor = Arc::new(BatchSpanProcessor::new(exporter, batches));
    // an error means that nothing waits for it
    let _ = made.send(Ok(Arc::clone(&processor)));
    stopping.wait().await;
    // the last exports need this thread
    let flushed = spawn_blocking(move || processor.shutdown_with_timeout(FLUSH)).await;
    if !matches!(flushed, Ok(Ok(()))) {
        tracing::warn!("stopped before the collector has taken all spans");
    }
}

/// Repeats failed attempts until the batch's timeout.
fn exporter(settings: &TraceSettings, cause: &Arc<Cause>) -> Result<OtlpExporter, String> {
    let TraceSettings { export, batch, resource, .. } = settings;
    let retries = RetryPolicy::recommended()
        .with_max_retries(usize::MAX)
        .with_initial_delay(FIRST_PAUSE)
        .with_max_delay(MAX_PAUSE)
        .with_max_jitter(FIRST_PAUSE);
    let exporter = match export.protocol {
        OtlpProtocol::Grpc => {
            let mut builder = OtlpExporter::builder()
                .with_tonic()
                .with_channel(channel(export, Arc::clone(cause))?)
                .with_interceptor(with_headers(export))
                .with_timeout(batch.timeout)
                .with_retry_policy(retries);
            if export.gzip {
                builder = builder.with_compression(Compression::Gzip);
            }
            builder.build()
        }
        OtlpProtocol::Http => {
            let Endpoint { authority, path, .. } = &export.endpoint;
            let mut builder = OtlpExporter::builder()
                .with_http()
                .with_protocol(ExporterProtocol::HttpBinary)
                .with_endpoint(format!("http://{authority}{path}"))
                .with_http_client(HttpConnection::new(export.clone(), Arc::clone(cause)))
                .with_timeout(batch.timeout)
                .with_retry_policy(retries);
            if export.gzip {
                builder = builder.with_compression(Compression::Gzip);
            }
            builder.build()
        }
    };
    let mut exporter = exporter.map_err(|error| error.to_string())?;
    let resource = resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    exporter.set_resource(&Resource::builder_empty().with_attributes(resource).build());
    Ok(exporter)
}

// === impl TraceExporter ===

impl SpanExporter for TraceExporter {
    /// Succeeds also if the export has failed: the processor would log each failure.
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (inner, spans) = (Arc::clone(&self.inner), batch.len() as u64);
        let sent = self.runtime.spawn(async move { inner.export(batch).await });
        match sent.await {
            Ok(Ok(())) => {
                self.counts.exported.add(spans);
                self.cause.lock().take();
                self.log.lock().succeeded();
            }
            Ok(Err(error)) => {
                self.counts.failed.add(spans);
                self.log.lock().failed(&self.cause.lock().take().unwrap_or_else(|| error.to_string()));
            }
            // the process has stopped
            Err(_) => self.counts.failed.add(spans),
        }
        Ok(())
    }
}
