//! Sends batches of spans through OpenTelemetry's exporter.

use std::{pin::pin, sync::Arc, time::Duration};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    Compression, ExporterBuildError, Protocol as OtlpProtocol, RetryPolicy, SpanExporter,
    WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter as _},
};
use tracing::{Dispatch, instrument::WithSubscriber as _};

use super::{
    attempts::{Attempts, Rejected},
    queue::SpanQueue,
    settings::TraceSettings,
};
use crate::otlp::{
    Cause, Endpoint, ExportSettings, FailureLog, HttpConnection, Protocol, Stopping, channel, with_headers,
};

/// The pause after a first failed attempt; it doubles with each further one, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The exporters of one connection.
pub(super) struct Sender {
    /// Repeats failed attempts until the batch's timeout.
    repeating: SpanExporter,
    /// Makes one attempt, at the end of the process.
    once: SpanExporter,
    attempts: Arc<Attempts>,
    events: Dispatch,
    cause: Arc<Cause>,
    log: FailureLog,
}

/// The connection of the exporters.
enum Connection {
    Grpc(tonic::transport::Channel),
    Http(HttpConnection),
}

// === impl Sender ===

impl Sender {
    /// Returns the sender of the spans of `queue`. Must be called in a runtime. The collector need not be reachable.
    ///
    /// # Errors
    ///
    /// A text, if the collector's address is none.
    pub(super) fn new(settings: &TraceSettings, queue: Arc<SpanQueue>) -> Result<Self, String> {
        let cause = Arc::new(Cause::default());
        let export = &settings.export;
        let connection = match export.protocol {
            Protocol::Grpc => Connection::Grpc(channel(export, Arc::clone(&cause))?),
            Protocol::Http => Connection::Http(HttpConnection::new(export.clone(), Arc::clone(&cause))),
        };
        let resource = settings.resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
        let resource = Resource::builder_empty().with_attributes(resource).build();
        let exporter = |policy| {
            let exporter = connection.exporter(export, settings.batch.timeout, policy);
            let mut exporter = exporter.map_err(|error| error.to_string())?;
            exporter.set_resource(&resource);
            Ok::<_, String>(exporter)
        };
        let repeating = RetryPolicy::recommended()
            .with_max_retries(usize::MAX)
            .with_initial_delay(FIRST_PAUSE)
            .with_max_delay(MAX_PAUSE)
            .with_max_jitter(FIRST_PAUSE);
        let attempts = Arc::new(Attempts::new(queue, Arc::clone(&cause)));
        Ok(Self {
            repeating: exporter(repeating)?,
            once: exporter(RetryPolicy::disabled())?,
            events: Dispatch::new(Arc::clone(&attempts)),
            attempts,
            cause,
            log: FailureLog::repeated("traces"),
        })
    }

    /// Sends `spans`, and tries again while that may succeed. Once `stopping` is true there is only one more attempt.
    /// Returns the number of rejected spans; none if the export has failed.
    pub(super) async fn send(&mut self, spans: Vec<SpanData>, stopping: &mut Stopping) -> Option<u64> {
        self.attempts.begin();
        let sent = if stopping.is_stopping() { None } else { self.repeat(spans.clone(), stopping).await };
        let sent = match sent {
            Some(sent) => sent,
            None => self.once.export(spans).with_subscriber(self.events.clone()).await,
        };
        match sent {
            Ok(()) => {
                let Rejected { spans, message } = self.attempts.rejected();
                if spans > 0 {
                    self.log.failed(&format!("the collector has rejected {spans} spans: {message}"));
                } else {
                    self.log.succeeded();
                }
                self.cause.take();
                Some(spans)
            }
            Err(error) => {
                self.attempts.export_failed();
                self.log.failed(&self.cause.take().unwrap_or_else(|| error.to_string()));
                None
            }
        }
    }

    /// Sends `spans`, and repeats attempts that fail. Returns none if the process stops in a pause between two
    /// attempts.
    async fn repeat(&mut self, spans: Vec<SpanData>, stopping: &mut Stopping) -> Option<OTelSdkResult> {
        let mut sending = pin!(self.repeating.export(spans).with_subscriber(self.events.clone()));
        let mut is_stopping = false;
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return Some(sent),
                () = self.attempts.failed() => {
                    // the reason of an answer over gRPC is known at the end only
                    if let Some(cause) = self.cause.take() {
                        self.log.failed(&cause);
                    }
                }
                () = stopping.wait(), if !is_stopping => is_stopping = true,
            }
            if is_stopping && self.attempts.is_pausing() {
                return None;
            }
        }
    }

    /// Logs files that cannot be used before the first span needs them.
    pub(super) async fn check_files(&mut self, settings: &ExportSettings) {
        if let Err(error) = crate::otlp::tls(settings).await {
            self.log.failed(&error.to_string());
        }
    }
}

// === impl Connection ===

impl Connection {
    fn exporter(
        &self,
        settings: &ExportSettings,
        deadline: Duration,
        policy: RetryPolicy,
    ) -> Result<SpanExporter, ExporterBuildError> {
        match self {
            Self::Grpc(channel) => {
                let mut builder = SpanExporter::builder()
                    .with_tonic()
                    .with_channel(channel.clone())
                    .with_interceptor(with_headers(settings))
                    .with_timeout(deadline)
                    .with_retry_policy(policy);
                if settings.gzip {
                    builder = builder.with_compression(Compression::Gzip);
                }
                builder.build()
            }
            Self::Http(connection) => {
                let Endpoint { authority, path, .. } = &settings.endpoint;
                let mut builder = SpanExporter::builder()
                    .with_http()
                    .with_protocol(OtlpProtocol::HttpBinary)
                    .with_endpoint(format!("http://{authority}{path}"))
                    .with_http_client(connection.clone())
                    .with_timeout(deadline)
                    .with_retry_policy(policy);
                if settings.gzip {
                    builder = builder.with_compression(Compression::Gzip);
                }
                builder.build()
            }
        }
    }
}
