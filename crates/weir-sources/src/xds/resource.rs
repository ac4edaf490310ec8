//! A resource to the tree that its rule file would parse to, so that it is checked as a file is.

use bytes::Bytes;
use prost::Message;
use prost_types::{Struct, value::Kind};
use serde_json::{Map, Value, json};

use super::{parts::MAX_DEPTH, response::Resource};
use weir_config::{Document, DocumentContent};
use weir_observe::text::shortened;
use weir_proto::ratelimit::config::ratelimit::v3::{RateLimitPolicy, RateLimitUnit};

pub(super) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

const MAX_NAME: usize = 1_000;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResourceError {
    #[error("the resource has the type '{0}' instead of '{TYPE_URL}'")]
    Type(String),
    #[error("the resource cannot be decoded: {0}")]
    Malformed(String),
    #[error("{0}: nested deeper than {MAX_DEPTH} levels")]
    TooDeep(String),
}

/// `RateLimitConfig` whose descriptors are not decoded yet: the generated type stops at a depth of 100 messages.
#[derive(Clone, PartialEq, Message)]
struct Config {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    descriptors: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceDescriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<RateLimitPolicy>,
    #[prost(bytes = "bytes", repeated, tag = "4")]
    descriptors: Vec<Bytes>,
    #[prost(bool, tag = "5")]
    shadow_mode: bool,
    #[prost(bool, tag = "6")]
    detailed_metric: bool,
    #[prost(bool, tag = "7")]
    quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    metadata: Option<Struct>,
}

pub(super) fn document(resource: Resource) -> Result<Document, ResourceError> {
    let short = |text: &str| shortened(text, MAX_NAME).into_owned();
    if resource.type_url != TYPE_URL {
        return Err(ResourceError::Type(short(&resource.type_url)));
    }
    let mut config: Config = decode(resource.value)?;
    // it is part of each message about the resource
    config.name = short(&config.name);
    let descriptors = descriptors(config.descriptors, 1).map_err(|error| match error {
        ResourceError::TooDeep(_) => ResourceError::TooDeep(config.name.clone()),
        ResourceError::Malformed(what) => ResourceError::Malformed(format!("{}: {what}", config.name)),
        error @ ResourceError::Type(_) => error,
    })?;
    let content = json!({ "domain": config.domain, "descriptors": descriptors });
    Ok(Document { name: config.name, content: DocumentContent::Tree(content) })
}

fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, ResourceError> {
    M::decode(bytes).map_err(|error| ResourceError::Malformed(error.to_string()))
}

fn descriptors(encoded: Vec<Bytes>, depth: usize) -> Result<Value, ResourceError> {
    if depth > MAX_DEPTH && !encoded.is_empty() {
        return Err(ResourceError::TooDeep(String::new()));
    }
    let decoded = encoded.into_iter().map(|bytes| descriptor(decode(bytes)?, depth));
    decoded.collect::<Result<_, _>>().map(Value::Array)
}

fn descriptor(sent: ResourceDescriptor, depth: usize) -> Result<Value, ResourceError> {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    add("key", sent.key.into());
    if !sent.value.is_empty() {
        add("value", sent.value.into());
    }
    if let Some(policy) = sent.rate_limit {
        add("rate_limit", rate_limit(policy));
    }
    for (name, flag) in [
        ("shadow_mode", sent.shadow_mode),
        ("detailed_metric", sent.detailed_metric),
        ("quota_mode", sent.quota_mode),
    ] {
        if flag {
            add(name, true.into());
        }
    }
    if let Some(metadata) = sent.metadata {
        add("metadata", object(metadata));
    }
    if !sent.descriptors.is_empty() {
        add("descriptors", descriptors(sent.descriptors, depth + 1)?);
    }
    Ok(Value::Object(fields))
}

fn rate_limit(policy: RateLimitPolicy) -> Value {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    // fields that are not set look like zeros, which must not count as a limit beside `unlimited`
    if !policy.unlimited || policy.unit != 0 {
        let unit = RateLimitUnit::try_from(policy.unit);
        let unit = unit.map_or_else(|_| policy.unit.to_string(), |unit| unit.as_str_name().to_owned());
        add("unit", unit.into());
    }
    if !policy.unlimited || policy.requests_per_unit != 0 {
        add("requests_per_unit", policy.requests_per_unit.into());
    }
    if policy.unlimited {
        add("unlimited", true.into());
    }
    if !policy.name.is_empty() {
        add("name", policy.name.into());
    }
    if !policy.replaces.is_empty() {
        let names = policy.replaces.into_iter().map(|replaced| json!({ "name": replaced.name }));
        add("replaces", names.collect());
    }
    Value::Object(fields)
}

fn object(sent: Struct) -> Value {
    sent.fields.into_iter().map(|(name, value)| (name, json_of(value))).collect::<Map<_, _>>().into()
}

fn json_of(value: prost_types::Value) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => flag.into(),
        Some(Kind::NumberValue(number)) => number_of(number),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json_of).collect(),
        Some(Kind::StructValue(sent)) => object(sent),
    }
}

/// Returns a whole number without a fraction, as a rule file would have it.
#[expect(clippy::cast_possible_truncation, reason = "the number is within the range")]
fn number_of(number: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT { (number as i64).into() } else { number.into() }
}
