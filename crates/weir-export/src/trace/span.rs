use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    Array, InstrumentationScope, KeyValue, StringValue, Value,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags},
};
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use parking_lot::Mutex;

use super::sink::SpanSink;
use weir_limit::{Code, Request, Timestamp, Verdict};
use weir_observe::{DecisionRecord, RecordedDecision, StoreWait};

/// The name of a span of the gRPC method, as in envoyproxy/ratelimit.
const RPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The longest text from a caller in an attribute, in bytes. A value may have megabytes.
const MAX_TEXT: usize = 256;

/// The most bytes of all descriptors of a request.
const MAX_DESCRIPTORS: usize = 4_096;

const CANCELLED: i32 = 1;

static SCOPE: LazyLock<InstrumentationScope> =
    LazyLock::new(|| InstrumentationScope::builder("weir").with_version(env!("CARGO_PKG_VERSION")).build());

#[derive(Clone, Copy, Debug)]
pub(super) struct SpanOptions {
    pub(super) store: &'static str,
    pub(super) wait: &'static str,
    pub(super) descriptor_values: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanCall {
    Rpc,
    Json,
    /// The command of that name of Redis' protocol.
    Command(&'static str),
}

/// The span of a request that is decided now. A span that is dropped before it was ended was cancelled by its caller.
#[derive(Debug)]
pub struct RequestSpan {
    context: SpanContext,
    /// Invalid for the root of a trace.
    parent: SpanId,
    call: SpanCall,
    options: SpanOptions,
    /// The wall clock, and the same instant on the clock that measures durations.
    begun: (Timestamp, Instant),
    record: DecisionRecord,
    decided: Mutex<Vec<KeyValue>>,
    ended: Option<EndedSpan>,
    sink: Arc<SpanSink>,
}

#[derive(Debug)]
struct EndedSpan {
    /// Of gRPC, or of HTTP; 0 for commands, which have none.
    status: i64,
    error: Option<String>,
}

// === impl RequestSpan ===

impl RequestSpan {
    pub(super) fn new(
        context: SpanContext,
        parent: SpanId,
        call: SpanCall,
        now: Timestamp,
        options: SpanOptions,
        sink: Arc<SpanSink>,
    ) -> Self {
        Self {
            context,
            parent,
            call,
            options,
            begun: (now, Instant::now()),
            record: DecisionRecord::default(),
            decided: Mutex::default(),
            ended: None,
            sink,
        }
    }

    pub fn record(&self) -> &DecisionRecord {
        &self.record
    }

    pub fn decided(&self, request: &Request<'_>, verdict: &Verdict<'_>) {
        let outcome = match verdict.code {
            Code::Ok => "OK",
            Code::OverLimit => "OVER_LIMIT",
        };
        let mut attributes = vec![
            KeyValue::new("weir.domain", bounded(request.domain).to_owned()),
            KeyValue::new("weir.outcome", outcome),
        ];
        if verdict.shadowed {
            attributes.push(KeyValue::new("weir.shadowed", true));
        }
        if self.options.descriptor_values {
            attributes.push(list("weir.descriptors", descriptors(request)));
        }
        *self.decided.lock() = attributes;
    }

    /// Ends the span of a call that was answered with `status`, of gRPC or HTTP; `error` says why it failed.
    pub fn end(mut self: Box<Self>, status: i64, error: Option<&str>) {
        self.ended = Some(EndedSpan { status, error: error.map(|error| bounded(error).to_owned()) });
    }

    fn spans(&mut self) -> Vec<SpanData> {
        let recorded = self.record.take();
        let mut attributes = self.call_attributes();
        attributes.append(&mut self.decided.lock());
        let error = match &self.ended {
            Some(ended) => ended.error.clone(),
            None => Some("cancelled by the caller".to_owned()),
        };
        let mut spans = Vec::with_capacity(1 + recorded.waits.len());
        spans.push(SpanData {
            parent_span_id: self.parent,
            parent_span_is_remote: self.parent != SpanId::INVALID,
            span_kind: SpanKind::Server,
            name: match self.call {
                SpanCall::Rpc => RPC.into(),
                SpanCall::Json => "POST /json".into(),
                SpanCall::Command(name) => name.into(),
            },
            status: error.map_or(Status::Unset, Status::error),
            ..self.span(self.context.span_id(), self.begun.1, Instant::now())
        });
        spans.extend(recorded.waits.iter().map(|wait| self.child(wait)));
        attributes.extend(decision_attributes(recorded));
        spans[0].attributes = attributes;
        spans
    }

    fn child(&self, wait: &StoreWait) -> SpanData {
        SpanData {
            parent_span_id: self.context.span_id(),
            span_kind: SpanKind::Client,
            name: self.options.wait.into(),
            attributes: vec![
                KeyValue::new("db.system.name", self.options.store),
                KeyValue::new("db.operation.batch.size", i64::from(wait.commands)),
            ],
            status: wait.error.map_or(Status::Unset, Status::error),
            ..self.span(RandomIdGenerator::default().new_span_id(), wait.begun, wait.ended)
        }
    }

    fn span(&self, span_id: SpanId, begun: Instant, ended: Instant) -> SpanData {
        let at = |instant: Instant| -> SystemTime {
            let since = instant.saturating_duration_since(self.begun.1);
            UNIX_EPOCH + Duration::from_nanos(self.begun.0.as_nanos()) + since
        };
        SpanData {
            span_context: SpanContext::new(
                self.context.trace_id(),
                span_id,
                TraceFlags::SAMPLED,
                false,
                self.context.trace_state().clone(),
            ),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: "".into(),
            start_time: at(begun),
            end_time: at(ended),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: SCOPE.clone(),
        }
    }

    fn call_attributes(&self) -> Vec<KeyValue> {
        let status = self.ended.as_ref().map(|ended| ended.status);
        match self.call {
            SpanCall::Rpc => vec![
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
                KeyValue::new("rpc.method", "ShouldRateLimit"),
                KeyValue::new("rpc.grpc.status_code", status.unwrap_or(CANCELLED.into())),
            ],
            SpanCall::Command(name) => {
                vec![KeyValue::new("rpc.system", "resp"), KeyValue::new("rpc.method", name)]
            }
            SpanCall::Json => {
                [KeyValue::new("http.request.method", "POST"), KeyValue::new("http.route", "/json")]
                    .into_iter()
                    .chain(status.map(|status| KeyValue::new("http.response.status_code", status)))
                    .collect()
            }
        }
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let spans = self.spans();
        self.sink.push(spans);
    }
}

/// A request that failed early has none.
fn decision_attributes(recorded: RecordedDecision) -> Vec<KeyValue> {
    let RecordedDecision { rules, rules_over, modes, hits, fallback, rejected_by_fallback, waits } = recorded;
    if rules.is_empty() && modes.is_empty() {
        return Vec::new();
    }
    // a store in memory records no mode
    let modes = if modes.is_empty() { vec!["local"] } else { modes };
    let mut attributes = vec![
        list("weir.rules", rules),
        KeyValue::new("weir.hits", hits),
        list("weir.coordination", modes.into_iter().map(str::to_owned).collect()),
        KeyValue::new("weir.store.waited", !waits.is_empty()),
    ];
    if !rules_over.is_empty() {
        attributes.push(list("weir.rules_over_limit", rules_over));
        let reason = if rejected_by_fallback { "store" } else { "limit" };
        attributes.push(KeyValue::new("weir.rejection.reason", reason));
    }
    if fallback {
        attributes.push(KeyValue::new("weir.store.fallback", true));
    }
    attributes
}

/// Returns each descriptor as `key=value,key=value`.
fn descriptors(request: &Request<'_>) -> Vec<String> {
    let mut size = 0;
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let mut text = String::new();
        for entry in &descriptor.entries {
            if text.len() > MAX_TEXT {
                break;
            }
            let separator = if text.is_empty() { "" } else { "," };
            text.push_str(separator);
            text.push_str(bounded(entry.key));
            text.push('=');
            text.push_str(bounded(entry.value));
        }
        text
    });
    descriptors
        .take_while(|text| {
            size += text.len();
            size <= MAX_DESCRIPTORS
        })
        .collect()
}

fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

fn list(key: &'static str, values: Vec<String>) -> KeyValue {
    let values = values.into_iter().map(StringValue::from).collect();
    KeyValue::new(key, Value::Array(Array::String(values)))
}
