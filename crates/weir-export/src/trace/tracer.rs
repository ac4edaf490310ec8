//! Decides which requests are traced.

use std::sync::Arc;

use http::HeaderMap;

use super::{
    context::{Parent, SpanPlace, parent},
    sampling::Sampling,
    settings::TraceSettings,
    sink::SpanSink,
    span::{RequestSpan, SpanCall, SpanOptions},
};
use weir_limit::Timestamp;

/// Makes the spans of requests.
#[derive(Debug)]
pub struct Tracer {
    sampling: Sampling,
    options: SpanOptions,
    sink: Arc<SpanSink>,
}

// === impl Tracer ===

impl Tracer {
    pub(super) fn new(settings: &TraceSettings, sink: SpanSink) -> Self {
        let options = SpanOptions { store: settings.store, descriptor_values: settings.descriptor_values };
        Self { sampling: Sampling::new(settings.sampling_rate), options, sink: Arc::new(sink) }
    }

    /// Begins a call's span. None if it is not sampled: the caller decides that, or without a parent the sampling rate.
    #[must_use]
    pub fn start_rpc(&self, headers: &HeaderMap, now: Timestamp) -> Option<Box<RequestSpan>> {
        self.start(parent(headers), now, SpanCall::Rpc)
    }

    /// Begins the span of a request at `/json`, like [`Tracer::start_rpc`].
    #[must_use]
    pub fn start_json(&self, headers: &HeaderMap, now: Timestamp) -> Option<Box<RequestSpan>> {
        self.start(parent(headers), now, SpanCall::Json)
    }

    /// Begins the span of the command `name` of Redis' protocol, which has no parent, like [`Tracer::start_rpc`].
    #[must_use]
    pub fn start_command(&self, name: &'static str, now: Timestamp) -> Option<Box<RequestSpan>> {
        self.start(None, now, SpanCall::Command(name))
    }

    fn start(&self, parent: Option<Parent>, now: Timestamp, call: SpanCall) -> Option<Box<RequestSpan>> {
        let trace_id = match &parent {
            Some(parent) => parent.sampled.then_some(parent.trace_id)?,
            None => self.sampling.trace()?,
        };
        let place = SpanPlace { trace_id, span_id: self.sampling.id(), parent };
        // only a request with a few waits uses more ids
        let children = self.sampling.id();
        Some(Box::new(RequestSpan::new(place, call, now, self.options, children, Arc::clone(&self.sink))))
    }
}
