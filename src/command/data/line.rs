//! A counter as a line of JSON.
//!
//! Instants are seconds since the epoch as text, such as `1700000000.25`, with up to nine decimals: programs that read
//! numbers as floating point would round them. The tokens that a bucket of a rule lacks are in units of 2^-31 tokens;
//! one that comes with requests lacks whole ones. Its steps and its session are in milliseconds since the epoch, and
//! the time of a token is the bits of an IEEE 754 number of nanoseconds.

use std::io::{self, Write};

use serde_json::{Value, json};
use weir_disk::{StoredCounter, record::bucket_kind};
use weir_limit::{
    Hits, Timestamp,
    algorithm::{CounterState, FixedWindow, SlidingWindow, Span, TokenBucket},
    request_bucket::{BucketKind, PacedBucket, StepBucket, TokenTime},
};

use crate::command::lines::write_json;

const NANOS: u64 = 1_000_000_000;

/// The longest name of a counter in bytes: longer ones are shortened before they are written.
const MAX_NAME: usize = 256;

/// The longest tier in bytes: that of a bucket which is refilled in steps.
const MAX_TIER: usize = 64;

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("it must be a JSON object: {}, in column {}", reason(.0), .0.column())]
    Json(#[from] serde_json::Error),
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("{field:?} must be {expected}")]
    Field { field: &'static str, expected: &'static str },
}

/// Leaves out the number of the line, which is 1 for each.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(reason, _)| reason.to_owned())
}

/// Omits one that cannot be read, which `inspect` tells.
pub(super) fn print(counter: &StoredCounter, out: &mut impl Write) -> io::Result<()> {
    let Ok(state) = &counter.state else { return Ok(()) };
    let state_value = match state {
        CounterState::FixedWindow(window) => json!({ "end": text(window.end()), "hits": state.used().0 }),
        CounterState::TokenBucket(bucket, _) => json!({
            "at": text(bucket.as_of()),
            "lacks": bucket.taken(),
            "in_debt": bucket.is_in_debt(),
        }),
        CounterState::SlidingWindow(..) | CounterState::OneSpan { .. } => {
            let window = state.sliding_window().unwrap_or_default();
            let spans: Vec<Value> = window
                .spans()
                .iter()
                .map(|span| json!({ "last": text(span.last), "hits": span.hits }))
                .collect();
            json!({ "opened": text(window.opened()), "spans": spans })
        }
        CounterState::Steps(bucket, _, by_caller) => steps(*bucket, *by_caller),
        CounterState::Session(session, _, by_caller) => {
            let mut value = steps(session.0, *by_caller);
            value["session_ms"] = json!(session.1);
            value
        }
        CounterState::Paced(bucket, token) => json!({
            "at": text(bucket.as_of()),
            "lacks": bucket.taken(),
            "token_bits": token.bits(),
        }),
    };
    let line = json!({
        "counter": counter.path,
        "tier": counter.tier,
        "expires": text(state.idle_at()),
        "state": state_value,
    });
    write_json(out, &line.to_string())
}

fn steps(bucket: StepBucket, by_caller: bool) -> Value {
    json!({ "stepped_at_ms": bucket.stepped_at(), "lacks": bucket.taken(), "by_caller": by_caller })
}

pub(super) fn parse(line: &str) -> Result<(String, String, CounterState), LineError> {
    let line: Value = serde_json::from_str(line)?;
    let field = |field, expected| LineError::Field { field, expected };
    let is_name = |name: &&str| {
        !name.is_empty() && name.len() <= MAX_NAME && !name.contains('}') && !name.starts_with('\0')
    };
    let counter = line["counter"].as_str().filter(is_name);
    let counter = counter.ok_or_else(|| field("counter", "the name of a counter, of up to 256 bytes"))?;
    let tier = line["tier"].as_str().filter(|tier| tier.len() <= MAX_TIER);
    let tier = tier.ok_or_else(|| field("tier", TIER))?;
    let expires = instant(&line["expires"]).ok_or_else(|| field("expires", SECONDS))?;
    let state = &line["state"];
    let number =
        |name: &'static str| state[name].as_u64().ok_or_else(|| field(name, "a whole number, 0 or more"));
    let time = |value: &Value, name| instant(value).ok_or_else(|| field(name, SECONDS));
    let flag = |name: &'static str| state[name].as_bool().ok_or_else(|| field(name, "true or false"));
    let state = match tier.trim_start_matches('c').chars().next() {
        Some('f') => {
            let end = time(&state["end"], "end")?;
            CounterState::FixedWindow(FixedWindow::new(end, Hits(number("hits")?)))
        }
        Some('b') => {
            let in_debt = flag("in_debt")?;
            let bucket = TokenBucket::new(time(&state["at"], "at")?, number("lacks")?, in_debt);
            CounterState::restored_bucket(bucket, expires)
        }
        Some('s') => {
            let spans = state["spans"].as_array().filter(|spans| spans.len() <= 64);
            let spans = spans.ok_or_else(|| field("spans", "a list of up to 64 spans"))?;
            let spans = spans.iter().map(|span| {
                let hits = span["hits"].as_u64().and_then(|hits| u32::try_from(hits).ok());
                let hits = hits.ok_or_else(|| field("hits", "a whole number from 0 to 4294967295"))?;
                Ok(Span { last: time(&span["last"], "last")?, hits })
            });
            let spans = spans.collect::<Result<Vec<_>, LineError>>()?;
            let window = SlidingWindow::new(time(&state["opened"], "opened")?, spans);
            CounterState::restored_window(window, expires)
        }
        _ => match bucket_kind(tier) {
            Some(BucketKind::Paced) => {
                let bits = state["token_bits"].as_u64().and_then(|bits| u32::try_from(bits).ok());
                let token = bits.map(TokenTime::from_bits).filter(|token| token.is_valid());
                let token =
                    token.ok_or_else(|| field("token_bits", "the bits of a positive 32-bit number"))?;
                let bucket = PacedBucket::new(time(&state["at"], "at")?, number("lacks")?);
                CounterState::Paced(bucket, token)
            }
            Some(BucketKind::Steps(_)) => {
                let bucket = StepBucket::new(number("lacks")?, number("stepped_at_ms")?);
                let session = if state["session_ms"].is_null() { None } else { Some(number("session_ms")?) };
                CounterState::restored_steps(bucket, session, expires, flag("by_caller")?)
            }
            None => return Err(field("tier", TIER)),
        },
    };
    Ok((counter.to_owned(), tier.to_owned(), state))
}

const TIER: &str = "an algorithm (f, s or b) and a period, such as s1m, or of a calendar fd, fw, fm, fq or fy; p; or r, max, refill and milliseconds, such as r5,5,60000";

const SECONDS: &str = "seconds since the epoch as text, such as \"1700000000.25\"";

fn text(instant: Timestamp) -> String {
    let (seconds, nanos) = (instant.as_nanos() / NANOS, instant.as_nanos() % NANOS);
    if nanos == 0 { seconds.to_string() } else { format!("{seconds}.{nanos:09}") }
}

fn instant(value: &Value) -> Option<Timestamp> {
    let (seconds, decimals) = value.as_str().map(|text| text.split_once('.').unwrap_or((text, "0")))?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(seconds) || !is_number(decimals) || decimals.len() > 9 {
        return None;
    }
    let nanos: u64 = format!("{decimals:0<9}").parse().ok()?;
    let nanos = seconds.parse::<u64>().ok()?.checked_mul(NANOS)?.checked_add(nanos)?;
    Some(Timestamp::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{
        Algorithm, Bucket, Period, Refill, Tier,
        request_bucket::{BucketRequest, Pace, PacedRequest, StepLimit, StepRequest, decide_bucket},
    };

    #[test]
    fn what_is_printed_is_parsed() {
        let bucket = Algorithm::TokenBucket(Bucket { burst: 9, refill: Refill::Step, strict: true });
        for (algorithm, name) in
            [(Algorithm::FixedWindow, "cf1m"), (Algorithm::SlidingWindow, "s1m"), (bucket, "b1m")]
        {
            let tier = Tier::new(9, Period::from_secs(60), algorithm);
            let now = Timestamp::from_nanos(1_700_000_000_012_345_678);
            let mut state = CounterState::unused(&tier, now);
            state.take(&tier, now, Hits(3));
            state.take(&tier, now.after(Period::from_secs(20)), Hits(2));
            let counter =
                StoredCounter { path: "shop|k=v".into(), tier: name.into(), state: Ok(state.clone()) };
            let mut line = Vec::new();
            print(&counter, &mut line).expect("a line");
            let line = String::from_utf8(line).expect("text");
            let parsed = parse(line.trim_end()).expect("a counter");
            assert_eq!(parsed, ("shop|k=v".into(), name.into(), state), "{line}");
        }
    }

    #[test]
    fn buckets_that_come_with_requests_are_printed_and_parsed() {
        let now = Timestamp::from_nanos(1_700_000_000_012_345_678);
        let limit = StepLimit { max: 9, refill: 2, period_ms: 60_000 };
        let step = |at, session| StepRequest { limit, take: 3, at, strict: false, session };
        let pace = Pace::new(7, 60).expect("a pace");
        for (request, tier) in [
            (BucketRequest::Step(step(None, false)), "r9,2,60000"),
            (BucketRequest::Step(step(Some(1 << 62), true)), "r9,2,60000"),
            (BucketRequest::Paced(PacedRequest { capacity: 9, pace, quantity: 4 }), "p"),
        ] {
            let mut state = None;
            decide_bucket(&request, &mut state, now);
            let state = state.expect("tokens were taken");
            let counter =
                StoredCounter { path: "|key=user".into(), tier: tier.into(), state: Ok(state.clone()) };
            let mut line = Vec::new();
            print(&counter, &mut line).expect("a line");
            let line = String::from_utf8(line).expect("text");
            let parsed = parse(line.trim_end()).expect("a counter");
            assert_eq!(parsed, ("|key=user".into(), tier.into(), state), "{line}");
        }
    }

    #[test]
    fn wrong_lines_say_what_is_wrong() {
        for (line, expected) in [
            ("", "must be a JSON object"),
            ("[]", "\"counter\" must be"),
            (r#"{"counter":"\u0000batch","tier":"f1m"}"#, "\"counter\" must be"),
            (r#"{"counter":"a"}"#, "\"tier\" must be"),
            (r#"{"counter":"a}b","tier":"f1m"}"#, "\"counter\" must be"),
            (r#"{"counter":"a","tier":"f1m"}"#, "\"expires\" must be seconds"),
            (r#"{"counter":"a","tier":"x","expires":"1"}"#, "\"tier\" must be an algorithm"),
            (
                r#"{"counter":"a","tier":"f1m","expires":"1","state":{"end":"9999999999999"}}"#,
                "\"end\" must be",
            ),
            (r#"{"counter":"a","tier":"f1m","expires":"1","state":{"end":"1"}}"#, "\"hits\" must be"),
            (
                r#"{"counter":"a","tier":"b1m","expires":"1","state":{"at":"1","lacks":-1}}"#,
                "\"in_debt\" must be",
            ),
            (r#"{"counter":"a","tier":"s1m","expires":"1","state":{}}"#, "\"spans\" must be"),
            (r#"{"counter":"a","tier":"r5,0,1","expires":"1","state":{}}"#, "\"tier\" must be"),
            (
                r#"{"counter":"a","tier":"p","expires":"1","state":{"token_bits":0}}"#,
                "\"token_bits\" must be",
            ),
            (
                r#"{"counter":"a","tier":"r5,5,1","expires":"1","state":{"lacks":1,"stepped_at_ms":1}}"#,
                "\"by_caller\" must be",
            ),
        ] {
            let error = parse(line).expect_err("it is wrong").to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
