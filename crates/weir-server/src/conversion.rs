//! Conversions between Envoy's protobuf messages and the types of [`limit`](weir_limit), shared by gRPC and `/json`.

use serde_json::Value;

use super::headers::Header;
use weir_limit::{
    Algorithm, Code, CurrentLimit, Descriptor, Entry, Metadata, NANOS_PER_SECOND, Period, Request,
    RuntimeLimit, Status, Tier, Unit, Verdict,
};
use weir_proto::envoy::{
    config::core::v3::HeaderValue,
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{self as response, DescriptorStatus, RateLimit, rate_limit},
    },
    r#type::v3::RateLimitUnit,
};

/// Why a message is not a valid request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The unit of a limit override is missing or unknown.
    #[error(
        "descriptor {descriptor}: the unit of its limit override is {unit}; write SECOND (1), MINUTE (2), HOUR (3), \
         DAY (4), MONTH (5), YEAR (6) or WEEK (7)"
    )]
    OverrideUnit {
        /// The index of the descriptor, from 0.
        descriptor: usize,
        /// The enum's number in the message.
        unit: i32,
    },
}

// === requests ===

pub(super) fn request(message: &RateLimitRequest) -> Result<Request<'_>, ConversionError> {
    let descriptors = message.descriptors.iter().enumerate().map(|(i, message)| descriptor(i, message));
    Ok(Request {
        domain: &message.domain,
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits: message.hits_addend,
    })
}

fn descriptor(index: usize, message: &RateLimitDescriptor) -> Result<Descriptor<'_>, ConversionError> {
    let entries = message.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value });
    Ok(Descriptor {
        entries: entries.collect(),
        limit: message.limit.map(|limit| limit_override(index, limit)).transpose()?,
        hits: message.hits_addend,
        refund: message.is_negative_hits,
    })
}

fn limit_override(
    descriptor: usize,
    message: RateLimitOverride,
) -> Result<Box<RuntimeLimit>, ConversionError> {
    Ok(Box::new(RuntimeLimit::per_unit(message.requests_per_unit, unit(descriptor, message.unit)?)))
}

/// `number` is the enum's; `descriptor` is an index, for the error.
pub(super) fn unit(descriptor: usize, number: i32) -> Result<Unit, ConversionError> {
    match RateLimitUnit::try_from(number) {
        Ok(RateLimitUnit::Second) => Ok(Unit::Second),
        Ok(RateLimitUnit::Minute) => Ok(Unit::Minute),
        Ok(RateLimitUnit::Hour) => Ok(Unit::Hour),
        Ok(RateLimitUnit::Day) => Ok(Unit::Day),
        Ok(RateLimitUnit::Week) => Ok(Unit::Week),
        Ok(RateLimitUnit::Month) => Ok(Unit::Month),
        Ok(RateLimitUnit::Year) => Ok(Unit::Year),
        Ok(RateLimitUnit::Unknown) | Err(_) => {
            Err(ConversionError::OverrideUnit { descriptor, unit: number })
        }
    }
}

// === responses ===

pub(super) fn response(verdict: &Verdict<'_>, headers: &[Header<'_>]) -> RateLimitResponse {
    let headers = |for_request: bool| {
        let header =
            |header: &Header<'_>| HeaderValue { key: header.name.to_owned(), value: header.value.clone() };
        headers.iter().filter(|header| header.for_request == for_request).map(header).collect()
    };
    RateLimitResponse {
        overall_code: code(verdict.code).into(),
        statuses: verdict.statuses.iter().map(descriptor_status).collect(),
        response_headers_to_add: headers(false),
        request_headers_to_add: headers(true),
        dynamic_metadata: verdict.metadata.as_ref().map(protobuf_struct),
        ..RateLimitResponse::default()
    }
}

pub(super) const fn code(code: Code) -> response::Code {
    match code {
        Code::Ok => response::Code::Ok,
        Code::OverLimit => response::Code::OverLimit,
    }
}

fn descriptor_status(status: &Status<'_>) -> DescriptorStatus {
    let reset = |limit: &CurrentLimit<'_>| {
        let (seconds, nanos) = duration(status.reset?, limit.tier);
        Some(prost_types::Duration { seconds, nanos })
    };
    DescriptorStatus {
        code: code(status.code).into(),
        current_limit: status.limit.as_ref().map(rate_limit),
        limit_remaining: status.remaining,
        duration_until_reset: status.limit.as_ref().and_then(reset),
    }
}

fn rate_limit(limit: &CurrentLimit<'_>) -> RateLimit {
    RateLimit {
        requests_per_unit: limit.requests,
        unit: unit_of(limit.tier).into(),
        name: limit.rule.name().unwrap_or_default().to_owned(),
    }
}

pub(super) fn unit_of(tier: &Tier) -> rate_limit::Unit {
    match tier.unit() {
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
pub(super) fn duration(period: Period, tier: &Tier) -> (i64, i32) {
    let whole =
        tier.algorithm == Algorithm::FixedWindow && tier.period.as_nanos().is_multiple_of(NANOS_PER_SECOND);
    let period = if whole { Period::from_secs(period.as_secs_ceil()) } else { period };
    let (seconds, nanos) = (period.as_nanos() / NANOS_PER_SECOND, period.as_nanos() % NANOS_PER_SECOND);
    (i64::try_from(seconds).unwrap_or(i64::MAX), i32::try_from(nanos).unwrap_or_default())
}

pub(super) fn protobuf_struct(fields: &Metadata) -> prost_types::Struct {
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
