//! Answers in JSON, and the values that several of them have.

use std::fmt::Write as _;

use axum::{
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use weir_limit::{Entry, Tier};
use weir_observe::text::escaped_json;

use super::time::seconds;

/// The largest number that every reader of JSON has exactly.
const MAX_EXACT: u64 = 1 << 53;

pub(in crate::http) fn answer(value: &Value) -> Response {
    let text = escaped_json(&value.to_string()).into_owned() + "\n";
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

pub(super) fn count(number: u64) -> Value {
    if number > MAX_EXACT { json!(number.to_string()) } else { json!(number) }
}

/// Hexadecimal digits, two for each byte.
pub(in crate::http) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // writing to a string cannot fail
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(in crate::http) fn entry(entry: &Entry<'_>) -> Value {
    json!({ "key": entry.key, "value": entry.value })
}

pub(super) fn tier(tier: &Tier) -> Value {
    json!({
        "limit": count(tier.requests.into()),
        "period": seconds(if tier.calendar.is_some() { tier.length() } else { tier.refill_period() }),
        "algorithm": tier.algorithm.kind().name(),
        "burst": tier.refills().then(|| count(tier.bucket().burst.into())),
        "words": tier.to_string(),
    })
}
