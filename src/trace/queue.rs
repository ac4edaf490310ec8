//! The bounded queue of ended spans, between the requests and the exporter.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use opentelemetry_sdk::trace::SpanData;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::observe::{Counter, Metric, Source};

/// The queue, and what became of its spans.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: Mutex<VecDeque<SpanData>>,
    /// The most spans that it holds.
    capacity: usize,
    /// The number of spans that makes an export worthwhile.
    batch: usize,
    /// Notified when `batch` spans wait.
    full_batch: Notify,
    /// The spans that are being exported.
    in_flight: AtomicU64,
    exported: Counter,
    dropped_full: Counter,
    dropped_failed: Counter,
    pub(super) failures: Counter,
}

// === impl SpanQueue ===

impl SpanQueue {
    /// Returns a queue of at most `capacity` spans, which are exported `batch` at a time.
    pub(super) fn new(capacity: usize, batch: usize) -> Self {
        Self {
            spans: Mutex::default(),
            capacity,
            batch,
            full_batch: Notify::new(),
            in_flight: AtomicU64::new(0),
            exported: Counter::default(),
            dropped_full: Counter::default(),
            dropped_failed: Counter::default(),
            failures: Counter::default(),
        }
    }

    /// Adds the spans of a request, as far as there is room, and drops the others.
    pub(super) fn push(&self, request: impl ExactSizeIterator<Item = SpanData>) {
        let mut spans = self.spans.lock();
        let (count, room) = (request.len(), self.capacity - spans.len());
        spans.extend(request.take(room));
        let is_full_batch = spans.len() >= self.batch;
        drop(spans);
        self.dropped_full.add(count.saturating_sub(room) as u64);
        if is_full_batch {
            self.full_batch.notify_one();
        }
    }

    /// Waits until a full batch has been queued.
    pub(super) async fn full_batch(&self) {
        self.full_batch.notified().await;
    }

    /// Returns whether a full batch waits.
    pub(super) fn has_full_batch(&self) -> bool {
        self.spans.lock().len() >= self.batch
    }

    /// Takes the next batch, which may be empty. [`SpanQueue::finish`] says what became of it.
    pub(super) fn next(&self) -> Vec<SpanData> {
        let mut spans = self.spans.lock();
        let count = self.batch.min(spans.len());
        let batch: Vec<SpanData> = spans.drain(..count).collect();
        self.in_flight.store(batch.len() as u64, Ordering::Relaxed);
        batch
    }

    /// Records that the collector has taken the last batch, but for `rejected` spans; or, with none, that it was given
    /// up.
    pub(super) fn finish(&self, rejected: Option<u64>) {
        let spans = self.in_flight.swap(0, Ordering::Relaxed);
        let dropped = rejected.map_or(spans, |rejected| rejected.min(spans));
        self.dropped_failed.add(dropped);
        self.exported.add(spans - dropped);
    }

    /// Drops all spans, also those that are being exported, and returns how many.
    pub(super) fn abandon(&self) -> u64 {
        let waiting = std::mem::take(&mut *self.spans.lock()).len() as u64;
        let dropped = waiting + self.in_flight.swap(0, Ordering::Relaxed);
        self.dropped_failed.add(dropped);
        dropped
    }
}

impl Source for SpanQueue {
    fn metrics(&self) -> Vec<Metric> {
        let dropped = [("queue_full", &self.dropped_full), ("export_failed", &self.dropped_failed)];
        let dropped = dropped.map(|(reason, counter)| {
            let help = "Spans that did not reach the collector.";
            Metric::counter("weir.trace.spans_dropped", help, counter.get()).label("reason", reason)
        });
        let mut metrics = vec![
            Metric::counter(
                "weir.trace.spans_exported",
                "Spans that the collector has taken.",
                self.exported.get(),
            ),
            Metric::counter(
                "weir.trace.export_failures",
                "Attempts to send spans that failed, including those that were repeated.",
                self.failures.get(),
            ),
            Metric::gauge(
                "weir.trace.queue",
                "Spans that wait to be exported.",
                self.spans.lock().len() as u64,
            ),
        ];
        metrics.extend(dropped);
        metrics
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use opentelemetry::{
        InstrumentationScope,
        trace::{SpanContext, SpanId, SpanKind, Status},
    };

    use super::*;

    fn span() -> SpanData {
        SpanData {
            span_context: SpanContext::NONE,
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Server,
            name: "a".into(),
            start_time: UNIX_EPOCH,
            end_time: UNIX_EPOCH,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: opentelemetry_sdk::trace::SpanEvents::default(),
            links: opentelemetry_sdk::trace::SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::default(),
        }
    }

    fn values(queue: &SpanQueue) -> Vec<u64> {
        queue.metrics().into_iter().map(|metric| metric.value).collect()
    }

    #[test]
    fn a_full_queue_drops_spans_and_counts_them() {
        let queue = SpanQueue::new(10, 4);
        for _ in 0..6 {
            queue.push(vec![span(); 2].into_iter());
        }
        queue.push(vec![span()].into_iter());
        // exported, failures, waiting, dropped because it was full, dropped because the export failed
        assert_eq!(values(&queue), [0, 0, 10, 3, 0]);
        assert_eq!(queue.next().len(), 4);
        queue.finish(Some(1));
        assert_eq!(values(&queue), [3, 0, 6, 3, 1]);
        assert_eq!(queue.next().len(), 4);
        queue.finish(None);
        assert_eq!(values(&queue), [3, 0, 2, 3, 5]);
        assert_eq!(queue.next().len(), 2);
        queue.push(vec![span()].into_iter());
        assert_eq!(queue.abandon(), 3);
        assert_eq!(values(&queue), [3, 0, 0, 3, 8]);
    }
}
