//! The spans of one request.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{context::Place, queue::SpanQueue};
use crate::{
    limit::{Code, Request, Timestamp, Verdict},
    observe::{DecisionRecord, RecordedDecision, StoreWait},
    proto::opentelemetry::proto::{
        common::v1::{AnyValue, ArrayValue, KeyValue, any_value::Value},
        trace::v1::{Span, Status, span::SpanKind, status::StatusCode},
    },
};

/// The name of a span of the gRPC method, as in envoyproxy/ratelimit.
const RPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The longest text from a caller in an attribute, in bytes. A value may have megabytes.
const MAX_TEXT: usize = 256;

/// The most bytes of all descriptors of a request.
const MAX_DESCRIPTORS: usize = 4_096;

/// The gRPC status of a call that its caller has cancelled.
const CANCELLED: i32 = 1;

/// Bit 8 of a span's flags says that bit 9 is valid, which says that its parent is in another process. Bit 0: it is sampled.
const PARENT_IS_LOCAL: u32 = 0x101;
const PARENT_IS_REMOTE: u32 = 0x301;

/// What spans contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanOptions {
    /// The shared store.
    pub(super) store: &'static str,
    pub(super) descriptor_values: bool,
}

/// How a request has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Rpc,
    Json,
}

/// The span of a request that is decided now. A span that is dropped before it was ended was cancelled by its caller.
#[derive(Debug)]
pub struct RequestSpan {
    place: Place,
    call: Call,
    options: SpanOptions,
    /// The wall clock, and the same instant on the clock that measures durations.
    begun: (Timestamp, Instant),
    record: DecisionRecord,
    decided: Mutex<Vec<KeyValue>>,
    /// The id of the first child; the next ones follow.
    children: u64,
    ended: Option<Ended>,
    queue: Arc<SpanQueue>,
}

/// How a request has ended.
#[derive(Debug)]
struct Ended {
    /// Of gRPC, or of HTTP.
    status: i64,
    /// Set if it failed.
    error: Option<String>,
}

// === impl RequestSpan ===

impl RequestSpan {
    pub(super) fn new(
        place: Place,
        call: Call,
        now: Timestamp,
        options: SpanOptions,
        children: u64,
        queue: Arc<SpanQueue>,
    ) -> Self {
        Self {
            place,
            call,
            options,
            begun: (now, Instant::now()),
            record: DecisionRecord::default(),
            decided: Mutex::default(),
            children,
            ended: None,
            queue,
        }
    }

    /// Returns the record for the limiter.
    #[must_use]
    pub fn record(&self) -> &DecisionRecord {
        &self.record
    }

    /// Adds the outcome of `request`.
    pub fn decided(&self, request: &Request<'_>, verdict: &Verdict<'_>) {
        let outcome = match verdict.code {
            Code::Ok => "OK",
            Code::OverLimit => "OVER_LIMIT",
        };
        let mut attributes =
            vec![text("weir.domain", bounded(request.domain)), text("weir.outcome", outcome)];
        if verdict.shadowed {
            attributes.push(flag("weir.shadowed", true));
        }
        if self.options.descriptor_values {
            attributes.push(list("weir.descriptors", descriptors(request)));
        }
        *self.decided.lock() = attributes;
    }

    /// Ends the span of a call that was answered with the gRPC `status`; `error` says why it failed.
    pub fn end_rpc(mut self: Box<Self>, status: i32, error: Option<&str>) {
        self.ended =
            Some(Ended { status: status.into(), error: error.map(|error| bounded(error).to_owned()) });
    }

    /// Ends the span of a request that was answered with the HTTP `status`; `error` says why it failed.
    pub fn end_json(mut self: Box<Self>, status: u16, error: Option<&str>) {
        self.ended =
            Some(Ended { status: status.into(), error: error.map(|error| bounded(error).to_owned()) });
    }

    /// Returns the span, and a child for each wait.
    fn spans(&mut self) -> Vec<Span> {
        let recorded = self.record.take();
        let mut attributes = self.call_attributes();
        attributes.append(&mut self.decided.lock());
        let error = match &self.ended {
            Some(ended) => ended.error.clone(),
            None => Some("cancelled by the caller".to_owned()),
        };
        let children: Vec<Span> =
            recorded.waits.iter().zip(0..).map(|(wait, i)| self.child(wait, i)).collect();
        attributes.extend(decision_attributes(recorded));
        let parent = mem::take(&mut self.place.parent);
        let name = match self.call {
            Call::Rpc => RPC,
            Call::Json => "POST /json",
        };
        let span = Span {
            trace_state: parent.as_ref().map(|parent| parent.state.clone()).unwrap_or_default(),
            parent_span_id: parent.as_ref().map(|parent| id(parent.span_id)).unwrap_or_default(),
            name: name.to_owned(),
            kind: SpanKind::Server.into(),
            attributes,
            status: error.map(failed),
            flags: if parent.is_some() { PARENT_IS_REMOTE } else { PARENT_IS_LOCAL },
            ..self.span(self.place.span_id, self.begun.1, Instant::now())
        };
        let state = span.trace_state.clone();
        let children = children.into_iter().map(|child| Span { trace_state: state.clone(), ..child });
        [span].into_iter().chain(children).collect()
    }

    fn child(&self, wait: &StoreWait, i: u64) -> Span {
        Span {
            parent_span_id: id(self.place.span_id),
            // as in envoyproxy/ratelimit
            name: match self.options.store {
                "memcached" => "Memcached Fetch Execution".to_owned(),
                _ => "Redis Pipeline Execution".to_owned(),
            },
            kind: SpanKind::Client.into(),
            attributes: vec![
                text("db.system.name", self.options.store),
                number("db.operation.batch.size", wait.commands.into()),
            ],
            status: wait.error.map(|error| failed(error.to_owned())),
            flags: PARENT_IS_LOCAL,
            ..self.span(self.children.wrapping_add(i).max(1), wait.begun, wait.ended)
        }
    }

    /// Returns a span of this trace with ids and times only.
    fn span(&self, span_id: u64, begun: Instant, ended: Instant) -> Span {
        let at = |instant: Instant| {
            let since = instant.saturating_duration_since(self.begun.1);
            self.begun.0.as_nanos().saturating_add(nanos(since))
        };
        Span {
            trace_id: self.place.trace_id.to_be_bytes().to_vec(),
            span_id: id(span_id),
            start_time_unix_nano: at(begun),
            end_time_unix_nano: at(ended),
            ..Span::default()
        }
    }

    /// Returns the attributes of the protocol.
    fn call_attributes(&self) -> Vec<KeyValue> {
        let status = self.ended.as_ref().map(|ended| ended.status);
        match self.call {
            Call::Rpc => vec![
                text("rpc.system", "grpc"),
                text("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
                text("rpc.method", "ShouldRateLimit"),
                number("rpc.grpc.status_code", status.unwrap_or(CANCELLED.into())),
            ],
            Call::Json => [text("http.request.method", "POST"), text("http.route", "/json")]
                .into_iter()
                .chain(status.map(|status| number("http.response.status_code", status)))
                .collect(),
        }
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let spans = self.spans();
        self.queue.push(spans.into_iter());
    }
}

/// Returns the attributes of what was recorded. A request that failed early has none.
fn decision_attributes(recorded: RecordedDecision) -> Vec<KeyValue> {
    let RecordedDecision { rules, rules_over, modes, hits, fallback, waits } = recorded;
    if rules.is_empty() && modes.is_empty() {
        return Vec::new();
    }
    // a store in memory records no mode
    let modes = if modes.is_empty() { vec!["local"] } else { modes };
    let mut attributes = vec![
        list("weir.rules", rules),
        number("weir.hits", hits),
        list("weir.coordination", modes.into_iter().map(str::to_owned).collect()),
        flag("weir.store.waited", !waits.is_empty()),
    ];
    if !rules_over.is_empty() {
        attributes.push(list("weir.rules_over_limit", rules_over));
    }
    if fallback {
        attributes.push(flag("weir.store.fallback", true));
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

/// Returns the beginning of `text`, of at most [`MAX_TEXT`] bytes.
fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

fn id(id: u64) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn failed(message: String) -> Status {
    Status { message, code: StatusCode::Error.into() }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

/// Returns an attribute that is a text.
pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn flag(key: &str, value: bool) -> KeyValue {
    attribute(key, Value::BoolValue(value))
}

fn list(key: &str, values: Vec<String>) -> KeyValue {
    let values = values.into_iter().map(|value| AnyValue { value: Some(Value::StringValue(value)) });
    attribute(key, Value::ArrayValue(ArrayValue { values: values.collect() }))
}
