//! The answer to a request: encodes a verdict as a `RateLimitResponse`, without the generated message type. `/json`
//! converts the same bytes.
//!
//! `answer/tests.rs` compares this encoder with the generated one, byte for byte.

use bytes::Bytes;
use prost::Message as _;
use serde_json::Value;

use super::{field_writer::FieldWriter, headers::Header};
use weir_limit::{Code, CurrentLimit, Metadata, NANOS_PER_SECOND, Period, Status, Tier, Unit, Verdict};
use weir_proto::envoy::service::ratelimit::v3::rate_limit_response::{self as response, rate_limit};

/// Returns the message, with gRPC's prefix.
pub(super) fn encode(verdict: &Verdict<'_>, headers: &[Header<'_>]) -> Bytes {
    let mut out = FieldWriter::new();
    message(verdict, headers, &mut out);
    out.finish()
}

fn message(verdict: &Verdict<'_>, headers: &[Header<'_>], out: &mut FieldWriter) {
    out.small(1, code(verdict.code) as u8);
    for reported in &verdict.statuses {
        out.message(2, |out| status(reported, out));
    }
    for (field, for_request) in [(3, false), (4, true)] {
        for added in headers.iter().filter(|header| header.for_request == for_request) {
            out.message(field, |out| header(added, out));
        }
    }
    if let Some(metadata) = &verdict.metadata {
        // a tree of any depth, and rarely enabled: uses the generated encoder
        out.bytes(6, &protobuf_struct(metadata).encode_to_vec());
    }
}

fn status(status: &Status<'_>, out: &mut FieldWriter) {
    out.small(1, code(status.code) as u8);
    if let Some(limit) = &status.limit {
        out.message(2, |out| current_limit(limit, out));
    }
    if status.remaining > 0 {
        out.number(3, status.remaining.into());
    } else if status.is_closed() {
        return;
    }
    if let (Some(limit), Some(reset)) = (&status.limit, status.reset) {
        out.message(4, |out| {
            let (seconds, nanos) = duration(reset, limit.tier);
            out.number(1, seconds.unsigned_abs());
            out.number(2, nanos.unsigned_abs().into());
        });
    }
}

fn current_limit(limit: &CurrentLimit<'_>, out: &mut FieldWriter) {
    out.number(1, limit.requests.into());
    out.small(2, unit_of(limit.tier) as u8);
    out.text(3, limit.rule.name().unwrap_or_default());
}

fn header(header: &Header<'_>, out: &mut FieldWriter) {
    out.text(1, header.name);
    out.text(2, &header.value);
}

const fn code(code: Code) -> response::Code {
    match code {
        Code::Ok => response::Code::Ok,
        Code::OverLimit => response::Code::OverLimit,
    }
}

fn unit_of(tier: Option<&Tier>) -> rate_limit::Unit {
    match tier.and_then(Tier::unit) {
        // Envoy prints a limit with an unknown unit without a window, which is better than a wrong window
        None => rate_limit::Unit::Unknown,
        Some(Unit::Second) => rate_limit::Unit::Second,
        Some(Unit::Minute) => rate_limit::Unit::Minute,
        Some(Unit::Hour) => rate_limit::Unit::Hour,
        Some(Unit::Day) => rate_limit::Unit::Day,
        Some(Unit::Week) => rate_limit::Unit::Week,
        Some(Unit::Month) => rate_limit::Unit::Month,
        Some(Unit::Year) => rate_limit::Unit::Year,
    }
}

/// As seconds and nanoseconds. Fixed windows of whole seconds are rounded up to seconds: envoyproxy/ratelimit counts in
/// seconds, and Envoy forwards only whole seconds, which must not make a client retry early.
fn duration(period: Period, tier: Option<&Tier>) -> (i64, i32) {
    let is_whole =
        |tier: &Tier| tier.has_windows() && tier.period.as_nanos().is_multiple_of(NANOS_PER_SECOND);
    let whole = tier.is_some_and(is_whole);
    let period = if whole { Period::from_secs(period.as_secs_ceil()) } else { period };
    let (seconds, nanos) = (period.as_nanos() / NANOS_PER_SECOND, period.as_nanos() % NANOS_PER_SECOND);
    (i64::try_from(seconds).unwrap_or(i64::MAX), i32::try_from(nanos).unwrap_or_default())
}

fn protobuf_struct(fields: &Metadata) -> prost_types::Struct {
    let fields = fields.iter().map(|(key, value)| (key.clone(), protobuf_value(value)));
    prost_types::Struct { fields: fields.collect() }
}

fn protobuf_value(value: &Value) -> prost_types::Value {
    use prost_types::value::Kind;
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(bool) => Kind::BoolValue(*bool),
        // protobuf's numbers are doubles
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(values) => {
            Kind::ListValue(prost_types::ListValue { values: values.iter().map(protobuf_value).collect() })
        }
        Value::Object(fields) => Kind::StructValue(protobuf_struct(fields)),
    };
    prost_types::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests;
