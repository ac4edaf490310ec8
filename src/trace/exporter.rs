//! The thread that sends spans to the collector.
//!
//! A batch is sent when it is full, or when its delay is over. A failed attempt is repeated with a growing pause for as long as the
//! batch's timeout allows; meanwhile further spans wait in the bounded queue, or are dropped.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{oneshot, watch},
    task::spawn_blocking,
    time::{self, sleep, sleep_until, timeout},
};

use super::{
    export_error::{Accepted, ExportError},
    grpc::GrpcConnection,
    http::HttpConnection,
    queue::SpanQueue,
    settings::{Protocol, TraceSettings},
    span::text,
    tracer::Tracer,
};
use crate::{
    grpc_client::TargetTls,
    observe::{Stats, text::shortened},
    proto::opentelemetry::proto::{
        collector::trace::v1::ExportTraceServiceRequest,
        common::v1::InstrumentationScope,
        resource::v1::Resource,
        trace::v1::{ResourceSpans, ScopeSpans, Span},
    },
    runtime,
    tls::{ALPN_H2, ClientTls, ClientTlsNames},
};

/// How long the flush at the end may take, as in envoyproxy/ratelimit.
const FLUSH: Duration = Duration::from_secs(5);

/// The pause after a first failed attempt; it doubles with each further one, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The most characters of a collector's text in the log.
const MAX_MESSAGE: usize = 500;

/// The shortest time between two log messages about failures.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The handle of the exporting thread.
#[derive(Debug)]
pub struct Exporter {
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

/// The work of the thread.
struct Worker {
    settings: TraceSettings,
    queue: Arc<SpanQueue>,
    connection: Connection,
    log: FailureLog,
}

enum Connection {
    Grpc(GrpcConnection),
    Http(HttpConnection),
}

/// Bounds the messages about a collector that cannot be reached.
#[derive(Default)]
struct FailureLog {
    /// The time of the last message; none while exports succeed.
    last: Option<Instant>,
}

// === impl Exporter ===

impl Exporter {
    /// Starts the thread. Returns the tracer whose spans it sends. The collector need not be reachable.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread.
    pub fn start(settings: TraceSettings, stats: &Stats) -> io::Result<(Arc<Tracer>, Self)> {
        let queue = Arc::new(SpanQueue::new(settings.batch.queue, settings.batch.export));
        stats.register(&queue);
        let tracer = Arc::new(Tracer::new(&settings, Arc::clone(&queue)));
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = oneshot::channel();
        runtime::spawn("weir-traces".into(), async move || {
            let connection = match settings.export.protocol {
                Protocol::Grpc => Connection::Grpc(GrpcConnection::default()),
                Protocol::Http => Connection::Http(HttpConnection::default()),
            };
            Worker { settings, queue, connection, log: FailureLog::default() }.run(stopping).await;
            // an error means that nothing waits for the end
            let _ = end.send(());
        })?;
        Ok((tracer, Self { stop, ended }))
    }

    /// Sends all spans that have ended, and returns when the collector has taken them, or after 5 seconds. Must be called after
    /// the last request.
    pub async fn close(self) {
        self.stop.send_replace(true);
        let _ = self.ended.await;
    }
}

// === impl Worker ===

impl Worker {
    async fn run(mut self, stopping: watch::Receiver<bool>) {
        self.check_files().await;
        let mut deadline = stopping.clone();
        let flushed = async move {
            wait(&mut deadline).await;
            sleep(FLUSH).await;
        };
        tokio::select! {
            () = self.export_all(stopping) => {}
            () = flushed => {}
        }
        let dropped = self.queue.abandon();
        if dropped > 0 {
            tracing::warn!(spans = dropped, "stopped before the collector has taken all spans");
        }
    }

    /// Logs files that cannot be used before the first span needs them.
    async fn check_files(&mut self) {
        if let Err(ExportError::Temporary(error) | ExportError::Final(error)) =
            tls(self.settings.export.tls.clone(), self.settings.export.protocol).await
        {
            self.log.failed(&error);
        }
    }

    /// Exports spans until `stopping`, and then those that are left.
    async fn export_all(&mut self, mut stopping: watch::Receiver<bool>) {
        let queue = Arc::clone(&self.queue);
        let mut is_stopping = false;
        let mut due = time::Instant::now() + self.settings.batch.delay;
        while !is_stopping {
            tokio::select! {
                biased;
                () = wait(&mut stopping) => is_stopping = true,
                // it may have been sent since
                () = queue.full_batch() => if !queue.has_full_batch() { continue },
                () = sleep_until(due) => {}
            }
            due = time::Instant::now() + self.settings.batch.delay;
            loop {
                let spans = queue.next();
                if spans.is_empty() {
                    break;
                }
                self.export(spans, &mut stopping).await;
                is_stopping |= *stopping.borrow();
                if !is_stopping && !queue.has_full_batch() {
                    break;
                }
            }
        }
    }

    /// Sends `spans`, and tries again while that may succeed. At the end of the process there is only one more attempt.
    async fn export(&mut self, spans: Vec<Span>, stopping: &mut watch::Receiver<bool>) {
        let request = self.request(spans);
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let was_stopping = *stopping.borrow();
            let error = match self.attempt(&request).await {
                Ok(accepted) => {
                    self.queue.finish(Some(accepted.rejected));
                    return self.log.succeeded(&accepted);
                }
                Err(error) => error,
            };
            self.queue.failures.add(1);
            let (is_final, error) = match error {
                ExportError::Temporary(error) => (false, error),
                ExportError::Final(error) => (true, error),
            };
            self.log.failed(&error);
            if is_final || was_stopping || begun.elapsed() + pause > self.settings.batch.timeout {
                return self.queue.finish(None);
            }
            tokio::select! {
                () = wait(stopping) => {}
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn attempt(&mut self, request: &ExportTraceServiceRequest) -> Result<Accepted, ExportError> {
        let export = &self.settings.export;
        let files = || tls(export.tls.clone(), export.protocol);
        let connection = &mut self.connection;
        let sent = timeout(export.timeout, async {
            match connection {
                Connection::Grpc(connection) => connection.send(export, files, request).await,
                Connection::Http(connection) => connection.send(export, files, request).await,
            }
        });
        let late = || ExportError::Temporary(format!("no answer within {:?}", export.timeout));
        sent.await.unwrap_or_else(|_| Err(late()))
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let attributes = self.settings.resource.iter().map(|(key, value)| text(key, value)).collect();
        let scope = InstrumentationScope { name: "weir".into(), version: env!("CARGO_PKG_VERSION").into() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(Resource { attributes });
        ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}

/// Waits until `stopping` becomes true, or its sender is dropped.
async fn wait(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Reads the files of a connection's TLS, so that renewed ones take effect.
async fn tls(
    files: Option<(ClientTls, ClientTlsNames)>,
    protocol: Protocol,
) -> Result<Option<TargetTls>, ExportError> {
    let Some((files, names)) = files else { return Ok(None) };
    let alpn: &[&[u8]] = match protocol {
        Protocol::Grpc => &[ALPN_H2],
        Protocol::Http => &[b"http/1.1"],
    };
    match spawn_blocking(move || files.load(&names, alpn)).await {
        Ok(Ok(config)) => Ok(Some(TargetTls { config, server_name: None })),
        Ok(Err(error)) => Err(ExportError::Temporary(error.to_string())),
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

// === impl FailureLog ===

impl FailureLog {
    fn failed(&mut self, error: &str) {
        let now = Instant::now();
        if self.last.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL) {
            self.last = Some(now);
            let error = &*shortened(error, MAX_MESSAGE);
            tracing::warn!(error, "cannot send traces to the collector; decisions continue");
        }
    }

    fn succeeded(&mut self, accepted: &Accepted) {
        if accepted.rejected > 0 {
            let message = shortened(&accepted.message, MAX_MESSAGE);
            return self
                .failed(&format!("the collector has rejected {} spans: {message}", accepted.rejected));
        }
        if self.last.take().is_some() {
            tracing::warn!("traces are sent to the collector again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_text_of_a_collector_is_bounded_in_the_log() {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let accepted = Accepted { rejected: 1, message: "x".repeat(1 << 20) };
            FailureLog { last: None }.succeeded(&accepted);
            FailureLog { last: None }.failed(&"y".repeat(1 << 20));
        });
        let log = String::from_utf8(captured.0.lock().expect("no panic").clone()).expect("text");
        assert_eq!(log.lines().count(), 2, "{}", log.len());
        assert!(
            log.contains("has rejected 1 spans: xxx") && log.contains("yyy") && log.len() < 3_000,
            "{}",
            log.len()
        );
    }
}
