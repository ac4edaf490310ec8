//! Decides which requests are traced.

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample as _,
};

use super::{
    context::parent,
    settings::TraceSettings,
    sink::SpanSink,
    span::{RequestSpan, SpanCall, SpanOptions},
};
use weir_limit::Timestamp;

#[derive(Debug)]
pub struct Tracer {
    sampler: Sampler,
    ids: RandomIdGenerator,
    options: SpanOptions,
    sink: Arc<SpanSink>,
}

// === impl Tracer ===

impl Tracer {
    pub(super) fn new(settings: &TraceSettings, sink: SpanSink) -> Self {
        let &TraceSettings { store, wait, descriptor_values, sampling_rate, .. } = settings;
        let options = SpanOptions { store, wait, descriptor_values };
        let sampler = Sampler::TraceIdRatioBased(sampling_rate);
        Self { sampler, ids: RandomIdGenerator::default(), options, sink: Arc::new(sink) }
    }

    /// Begins the span of `call`, whose `headers` may name a parent. None if it is not sampled: the caller decides that,
    /// or without a parent the sampling rate.
    pub fn start(
        &self,
        call: SpanCall,
        headers: Option<&HeaderMap>,
        now: Timestamp,
    ) -> Option<Box<RequestSpan>> {
        let (trace_id, parent, state) = match headers.and_then(parent) {
            Some(parent) if !parent.is_sampled() => return None,
            Some(parent) => (parent.trace_id(), parent.span_id(), parent.trace_state().clone()),
            None => (new_trace(&self.sampler, &self.ids)?, SpanId::INVALID, TraceState::NONE),
        };
        let context = SpanContext::new(trace_id, self.ids.new_span_id(), TraceFlags::SAMPLED, false, state);
        Some(Box::new(RequestSpan::new(context, parent, call, now, self.options, Arc::clone(&self.sink))))
    }
}

fn new_trace(sampler: &Sampler, ids: &RandomIdGenerator) -> Option<TraceId> {
    let id = ids.new_trace_id();
    let result = sampler.should_sample(None, id, "", &SpanKind::Server, &[], &[]);
    (result.decision == SamplingDecision::RecordAndSample).then_some(id)
}

/// Returns a random UUID, version 4, as text.
pub fn random_instance_id() -> String {
    let id = RandomIdGenerator::default().new_trace_id().to_string();
    format!("{}-{}-4{}-a{}-{}", &id[..8], &id[8..12], &id[13..16], &id[17..20], &id[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_of_traces_is_sampled() {
        for (rate, least, most) in
            [(0.0, 0, 0), (0.25, 2_200, 2_800), (0.5, 4_700, 5_300), (1.0, 10_000, 10_000)]
        {
            let (sampler, ids) = (Sampler::TraceIdRatioBased(rate), RandomIdGenerator::default());
            let traces = (0..10_000).filter(|_| new_trace(&sampler, &ids).is_some()).count();
            assert!((least..=most).contains(&traces), "{rate}: {traces}");
        }
    }

    #[test]
    fn an_instance_id_is_a_uuid() {
        let id = random_instance_id();
        let lengths: Vec<_> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert!(id.as_bytes()[14] == b'4' && b"89ab".contains(&id.as_bytes()[19]), "{id}");
        assert_ne!(id, random_instance_id());
    }
}
