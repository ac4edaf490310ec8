//! Where the spans of requests go: to OpenTelemetry's batch processor.

use std::sync::Arc;

use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanProcessor as _};

use weir_observe::{Counter, Metric, Source};

/// Hands spans to the processor, which queues them up to a bound and never waits.
#[derive(Debug)]
pub(super) struct SpanSink {
    processor: Arc<BatchSpanProcessor>,
    counts: Arc<SpanCounts>,
}

/// Spans neither exported nor failed wait in the processor's queue or were dropped: it does not tell how many.
#[derive(Debug, Default)]
pub(super) struct SpanCounts {
    ended: Counter,
    pub(super) exported: Counter,
    pub(super) failed: Counter,
}

// === impl SpanSink ===

impl SpanSink {
    pub(super) fn new(processor: Arc<BatchSpanProcessor>, counts: Arc<SpanCounts>) -> Self {
        Self { processor, counts }
    }

    pub(super) fn push(&self, request: Vec<SpanData>) {
        self.counts.ended.add(request.len() as u64);
        for span in request {
            self.processor.on_end(span);
        }
    }
}

impl Source for SpanCounts {
    fn metrics(&self) -> Vec<Metric> {
        vec![
            Metric::counter("weir.trace.spans", "Spans that have ended.", self.ended.get()),
            Metric::counter(
                "weir.trace.spans_exported",
                "Spans of exports that the collector has taken.",
                self.exported.get(),
            ),
            Metric::counter(
                "weir.trace.spans_failed",
                "Spans of exports that were given up.",
                self.failed.get(),
            ),
        ]
    }
}
