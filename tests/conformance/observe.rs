//! What weir answered, in the format of the recording.

use std::{collections::BTreeMap, net::SocketAddr};

use prost_types::{Struct, value::Kind};
use serde_json::{Map, Value, json};
use tonic::Status;
use weir_proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::DescriptorStatus};

use crate::{
    in_process::{Weir, get, until},
    redis_server::Server,
};

/// Converts an answer.
pub(crate) fn answer(answer: Result<RateLimitResponse, Status>) -> Value {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            return json!({ "error": [format!("{:?}", error.code()).to_uppercase(), error.message()] });
        }
    };
    let headers = answer.response_headers_to_add.iter().map(|header| {
        let is_reset = header.key.ends_with("-Reset");
        json!([header.key, if is_reset { "t" } else { &*header.value }])
    });
    let mut observed = json!({
        "code": answer.overall_code,
        "statuses": answer.statuses.iter().map(status).collect::<Vec<_>>(),
        "headers": headers.collect::<Vec<_>>(),
    });
    if let Some(metadata) = &answer.dynamic_metadata {
        observed["metadata"] = object(metadata);
    }
    observed
}

fn status(status: &DescriptorStatus) -> Value {
    let limit = status.current_limit.as_ref();
    let limit = limit.map(|limit| json!([limit.requests_per_unit, limit.unit, limit.name]));
    json!([status.code, limit, status.limit_remaining, status.duration_until_reset.map(|_| "t")])
}

fn object(fields: &Struct) -> Value {
    let field = |(name, value): (&String, &prost_types::Value)| {
        let value = match (&**name, self::value(value)) {
            ("limit", Value::String(text)) => sorted_words(&text).into(),
            (_, value) => value,
        };
        (name.clone(), value)
    };
    Value::Object(fields.fields.iter().map(field).collect::<Map<_, _>>())
}

fn value(value: &prost_types::Value) -> Value {
    match value.kind.as_ref().expect("a value has a kind") {
        Kind::NullValue(_) => Value::Null,
        Kind::NumberValue(number) => json!(number),
        Kind::StringValue(text) => json!(text),
        Kind::BoolValue(value) => json!(value),
        Kind::StructValue(fields) => object(fields),
        Kind::ListValue(list) => list.values.iter().map(self::value).collect(),
    }
}

fn sorted_words(text: &str) -> String {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_unstable();
    words.join(" ")
}

/// Reads the StatsD counters that are not zero.
pub(crate) async fn stats(weir: &Weir) -> BTreeMap<String, u64> {
    let page = page(weir.addresses.debug, "/stats").await;
    let counters = page.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(": ")?;
        let value = value.parse().ok().filter(|value| *value > 0)?;
        name.starts_with("ratelimit.service.").then(|| (name.to_owned(), value))
    });
    counters.collect()
}

/// Reads the number of commands that were sent to Redis, without heartbeats.
pub(crate) async fn commands(weir: &Weir) -> u64 {
    let page = page(weir.addresses.debug, "/metrics").await;
    let line = page.lines().find_map(|line| line.strip_prefix("weir_store_commands_total "));
    line.and_then(|count| count.parse().ok()).expect("a metric")
}

/// Reads the lines of `/rlconfig`, sorted.
pub(crate) async fn rules(weir: &Weir) -> Vec<String> {
    let page = page(weir.addresses.debug, "/rlconfig").await;
    let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Reads the keys in Redis, without their window starts, and their counts.
pub(crate) fn keys(redis: &Server) -> Vec<(String, u64)> {
    let keys: Vec<String> = redis.send(&["KEYS", "*"]);
    let counted = keys.iter().filter(|key| !key.contains("weir:instances"));
    let mut counts: Vec<(String, u64)> = counted
        .map(|key| {
            let (path, window) = key.rsplit_once('_').expect("a key ends with its window's start");
            assert!(window.parse::<u64>().is_ok(), "{key}");
            (path.to_owned(), redis.send(&["GET", key]))
        })
        .collect();
    counts.sort_unstable();
    counts
}

/// Waits until weir is connected to Redis.
pub(crate) async fn until_connected(weir: &Weir) {
    until("a connection to redis", async || page(weir.addresses.http, "/healthcheck").await == "OK").await;
}

/// Waits until weir knows the clock of Redis, which is years away from the frozen one: until then hits are counted in
/// windows of the latter.
pub(crate) async fn until_clock_is_known(weir: &Weir) {
    let unknown = "\nweir_store_clock_offset_nanoseconds 0\n";
    until("the clock of redis", async || !page(weir.addresses.debug, "/metrics").await.contains(unknown))
        .await;
}

/// Reads the body of a page.
async fn page(address: SocketAddr, path: &str) -> String {
    let answer = get(address, path).await;
    answer.split_once("\r\n\r\n").expect("a head and a body").1.to_owned()
}
