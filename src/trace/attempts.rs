//! What OpenTelemetry's exporter reports of its attempts. It returns whether an export succeeded, and tells the rest
//! only to the log: which attempts failed, how many spans the collector has rejected, and with which status it has
//! answered.

use std::{
    fmt::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

use super::queue::SpanQueue;
use crate::otlp::Cause;

/// The target of the exporter's events.
const TARGET: &str = "opentelemetry-otlp";

/// The attempts of one exporter, as the subscriber of its events.
#[derive(Debug)]
pub(super) struct Attempts {
    queue: Arc<SpanQueue>,
    cause: Arc<Cause>,
    /// Whether the exporter pauses before another attempt.
    pausing: AtomicBool,
    /// Notified when an attempt has failed.
    failed: Notify,
    failures: AtomicU64,
    rejected: Mutex<Rejected>,
}

/// The spans of an export that the collector has not taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Rejected {
    pub(super) spans: u64,
    /// Its reason, or a warning; empty in most cases.
    pub(super) message: String,
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    rejected_spans: i64,
    message: String,
    code: String,
}

// === impl Attempts ===

impl Attempts {
    /// Returns the attempts of an exporter that sends the spans of `queue`. The reasons of failures are put into
    /// `cause`.
    pub(super) fn new(queue: Arc<SpanQueue>, cause: Arc<Cause>) -> Self {
        Self {
            queue,
            cause,
            pausing: AtomicBool::new(false),
            failed: Notify::new(),
            failures: AtomicU64::new(0),
            rejected: Mutex::default(),
        }
    }

    /// Waits until an attempt has failed.
    pub(super) async fn failed(&self) {
        self.failed.notified().await;
    }

    /// Returns whether the exporter pauses before another attempt.
    pub(super) fn is_pausing(&self) -> bool {
        self.pausing.load(Ordering::Relaxed)
    }

    /// Begins the attempts of another export.
    pub(super) fn begin(&self) {
        self.pausing.store(false, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        *self.rejected.lock() = Rejected::default();
    }

    /// Returns what the collector has said about the spans that it has received.
    pub(super) fn rejected(&self) -> Rejected {
        self.rejected.lock().clone()
    }

    /// Counts a failure that happened before any attempt, such as that of a message that is too long.
    pub(super) fn export_failed(&self) {
        if self.failures.load(Ordering::Relaxed) == 0 {
            self.attempt_failed(false);
        }
    }

    fn attempt_failed(&self, is_repeated: bool) {
        self.pausing.store(is_repeated, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.queue.failures.add(1);
        self.failed.notify_one();
    }
}

impl Subscriber for Attempts {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == TARGET
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &Event<'_>) {
        let name = event.metadata().name();
        if let Some(outcome) = name.strip_prefix("Export.") {
            self.attempt_failed(outcome.starts_with("InProgress."));
        } else if name.ends_with(".ExportStarted") {
            self.pausing.store(false, Ordering::Relaxed);
        } else if name.ends_with(".PartialSuccess") {
            let fields = Fields::of(event);
            let spans = u64::try_from(fields.rejected_spans).unwrap_or_default();
            *self.rejected.lock() = Rejected { spans, message: fields.message };
        } else if name.ends_with(".ExportFailed") {
            let fields = Fields::of(event);
            // a connection that could not be opened has a cause already
            let connection = self.cause.take();
            let cause = || format!("the collector answers {}: {}", fields.code, fields.message);
            self.cause.set(connection.unwrap_or_else(cause));
        }
    }

    // the exporter has no spans that are enabled

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

// === impl Fields ===

impl Fields {
    fn of(event: &Event<'_>) -> Self {
        let mut fields = Self::default();
        event.record(&mut fields);
        fields
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "rejected_spans" {
            self.rejected_spans = value;
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "error_message" | "grpc_message" => value.clone_into(&mut self.message),
            "grpc_code" => value.clone_into(&mut self.code),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "error_message" | "grpc_message" => drop(write!(self.message, "{value:?}")),
            "grpc_code" => drop(write!(self.code, "{value:?}")),
            _ => {}
        }
    }
}
