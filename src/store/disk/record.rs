//! The records of the store on disk: one for each counter.
//!
//! The key is the text that names the counter: its path (as in the keys of a shared store), `}`, which no path contains, then
//! the algorithm and the period of its tier, such as `shop|tenant=acme}s1m`: `f` for a fixed window, `s` for a sliding
//! window, `b` for a token bucket, with a `c` in front if the rule counts rejected hits. Counters of one rule thus are beside
//! each other, and share the beginning of their keys in a block. A key that begins with a zero byte is the store's own.
//!
//! The value is binary, in the order below. Numbers are little-endian base 128 (LEB128), except where a size is given; a time
//! is the difference to the expiry in nanoseconds, modulo 2^64, with its sign in the lowest bit.
//!
//! | field | of |
//! | --- | --- |
//! | one byte: 16 times the version of the format, which is 1, plus the kind | all |
//! | four bytes, little-endian: the expiry, in seconds since the epoch, rounded up | all |
//! | the window's end; its hits | kind 1, a fixed window |
//! | the start of the newest span; the number of spans; for each, oldest first, its last hit and its hits | kind 2, a sliding window |
//! | an instant; the tokens that the bucket lacked then, in units of 2^-31 | kind 3, a token bucket; kind 4, one in debt |
//!
//! States are exact: what is read is what was written.

use crate::{
    limit::{
        Algorithm, Hits, LimitCheck, OverLimitPolicy, Tier, Timestamp,
        algorithm::{CounterState, FixedWindow, SlidingWindow, Span, TokenBucket},
    },
    store::path::{path_of, shortened},
};

/// The version of the format of values.
const VERSION: u8 = 1;

const FIXED_WINDOW: u8 = 1;
const SLIDING_WINDOW: u8 = 2;
const TOKEN_BUCKET: u8 = 3;
const BUCKET_IN_DEBT: u8 = 4;

/// The most spans that a value may have: more than a window ever has, so that a damaged value allocates little.
const MAX_SPANS: u64 = 64;

const NANOS: u64 = 1_000_000_000;

/// The reason why a value is not the state of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The first byte names no format that this version knows.
    #[error("unknown format {0:#04x}")]
    UnknownFormat(u8),
    /// The value ends too early, or a field is out of its range.
    #[error("invalid field: {0}")]
    InvalidField(&'static str),
    /// There are more bytes after the last field.
    #[error("{0} unexpected bytes at the end")]
    TrailingBytes(usize),
}

/// Returns the key of the counter of `tier`, one of the tiers of `check`.
pub(super) fn key(check: &LimitCheck<'_>, tier: &Tier) -> Box<[u8]> {
    let path = shortened(path_of(check));
    let mut key = String::with_capacity(path.len() + 12);
    key.push_str(&path);
    key.push('}');
    if check.over_limit_policy() == OverLimitPolicy::Count {
        key.push('c');
    }
    key.push(match tier.algorithm {
        Algorithm::FixedWindow => 'f',
        Algorithm::SlidingWindow => 's',
        Algorithm::TokenBucket(_) => 'b',
    });
    key.push_str(&tier.period.to_string());
    key.into_bytes().into()
}

/// Returns the expiry of `state`, in seconds since the epoch, rounded up: a record may be removed from then on.
pub(super) fn expiry(state: &CounterState) -> u32 {
    u32::try_from(state.idle_at().as_nanos().div_ceil(NANOS)).unwrap_or(u32::MAX)
}

/// Returns the expiry of the record with this `value`, without decoding the rest.
pub(super) fn expiry_of(value: &[u8]) -> Option<u32> {
    let (format, rest) = value.split_first()?;
    (format >> 4 == VERSION).then_some(())?;
    rest.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Encodes `state`.
///
/// # Panics
///
/// If `state` is a bucket whose parameters come with requests: the store on disk keeps none.
#[must_use]
pub fn encode(state: &CounterState) -> Vec<u8> {
    let expiry = expiry(state);
    let base = u64::from(expiry) * NANOS;
    let mut value = Vec::with_capacity(32);
    let begin = |value: &mut Vec<u8>, kind: u8| {
        value.push(VERSION << 4 | kind);
        value.extend(expiry.to_le_bytes());
    };
    match state {
        CounterState::FixedWindow(window) => {
            begin(&mut value, FIXED_WINDOW);
            put_time(&mut value, base, window.end());
            put(&mut value, state.used().0);
        }
        CounterState::TokenBucket(bucket, _) => {
            begin(&mut value, if bucket.is_in_debt() { BUCKET_IN_DEBT } else { TOKEN_BUCKET });
            put_time(&mut value, base, bucket.as_of());
            put(&mut value, bucket.taken());
        }
        CounterState::SlidingWindow(..) | CounterState::OneSpan { .. } => {
            let window = state.sliding_window().unwrap_or_default();
            begin(&mut value, SLIDING_WINDOW);
            put_time(&mut value, base, window.opened());
            put(&mut value, window.spans().len() as u64);
            for span in window.spans() {
                put_time(&mut value, base, span.last);
                put(&mut value, span.hits.into());
            }
        }
        CounterState::Steps(..) | CounterState::Session(..) | CounterState::Paced(..) => {
            unreachable!("the store on disk keeps no buckets whose parameters come with requests")
        }
    }
    value
}

/// Decodes a value that [`encode`] made.
///
/// # Errors
///
/// Returns an error if it is in no known format, or damaged.
pub fn decode(value: &[u8]) -> Result<CounterState, RecordError> {
    let (&format, rest) = value.split_first().ok_or(RecordError::InvalidField("format"))?;
    if format >> 4 != VERSION {
        return Err(RecordError::UnknownFormat(format));
    }
    let (expiry, mut rest) = rest.split_first_chunk().ok_or(RecordError::InvalidField("expiry"))?;
    let base = u64::from(u32::from_le_bytes(*expiry)) * NANOS;
    let (idle_at, rest) = (Timestamp::from_nanos(base), &mut rest);
    let state = match format & 0xf {
        FIXED_WINDOW => {
            let end = take_time(rest, base, "end of the window")?;
            CounterState::FixedWindow(FixedWindow::new(end, Hits(take(rest, "hits of the window")?)))
        }
        SLIDING_WINDOW => {
            let opened = take_time(rest, base, "start of the newest span")?;
            let count = take(rest, "number of spans")?;
            if count > MAX_SPANS {
                return Err(RecordError::InvalidField("number of spans"));
            }
            let mut spans = Vec::new();
            for _ in 0..count {
                let last = take_time(rest, base, "last hit of a span")?;
                let hits = take(rest, "hits of a span")?;
                let hits = u32::try_from(hits).map_err(|_| RecordError::InvalidField("hits of a span"))?;
                spans.push(Span { last, hits });
            }
            CounterState::restored_window(SlidingWindow::new(opened, spans), idle_at)
        }
        kind @ (TOKEN_BUCKET | BUCKET_IN_DEBT) => {
            let as_of = take_time(rest, base, "instant of the bucket")?;
            let taken = take(rest, "tokens")?;
            if taken >> 63 != 0 {
                return Err(RecordError::InvalidField("tokens"));
            }
            let bucket = TokenBucket::new(as_of, taken, kind == BUCKET_IN_DEBT);
            CounterState::restored_bucket(bucket, idle_at)
        }
        _ => return Err(RecordError::UnknownFormat(format)),
    };
    if rest.is_empty() { Ok(state) } else { Err(RecordError::TrailingBytes(rest.len())) }
}

/// Returns whether `state` is one that a counter of the algorithm of `tier` has.
pub(super) fn fits(state: &CounterState, tier: &Tier) -> bool {
    matches!(
        (state, tier.algorithm),
        (CounterState::FixedWindow(_), Algorithm::FixedWindow)
            | (CounterState::TokenBucket(..), Algorithm::TokenBucket(_))
            | (CounterState::SlidingWindow(..) | CounterState::OneSpan { .. }, Algorithm::SlidingWindow)
    )
}

fn put(value: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        value.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    value.push(number.to_le_bytes()[0]);
}

/// Appends the difference between the expiry and `instant`, which is usually small.
fn put_time(value: &mut Vec<u8>, base: u64, instant: Timestamp) {
    let before = base.wrapping_sub(instant.as_nanos()).cast_signed();
    put(value, (before << 1 ^ before >> 63).cast_unsigned());
}

fn take(rest: &mut &[u8], field: &'static str) -> Result<u64, RecordError> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(RecordError::InvalidField(field))?;
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(RecordError::InvalidField(field))
}

fn take_time(rest: &mut &[u8], base: u64, field: &'static str) -> Result<Timestamp, RecordError> {
    let folded = take(rest, field)?;
    let before = (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
    Ok(Timestamp::from_nanos(base.wrapping_sub(before.cast_unsigned())))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::limit::{Bucket, Period, Refill};

    fn bucket(refill: Refill) -> Algorithm {
        Algorithm::TokenBucket(Bucket { burst: 9, refill, strict: false })
    }

    fn algorithm() -> impl Strategy<Value = Algorithm> {
        prop_oneof![
            Just(Algorithm::FixedWindow),
            Just(Algorithm::SlidingWindow),
            Just(bucket(Refill::Continuous)),
            Just(bucket(Refill::Step)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            algorithm in algorithm(),
            period in 1_u64..40_000_000_000_000_000,
            hits in vec((any::<u32>(), 0_u64..3, any::<bool>()), 0..20),
            start in any::<u64>(),
        ) {
            let tier = Tier { requests: 7, period: Period::from_nanos(period), algorithm };
            let mut now = Timestamp::from_nanos(start);
            let mut state = CounterState::unused(&tier, now);
            for (step, hits, given_back) in hits {
                now = now.after(Period::from_nanos(u64::from(step) * (period / 1_000_000_000).max(1)));
                if given_back {
                    state.give_back(&tier, now, Hits(hits));
                } else {
                    state.take(&tier, now, Hits(hits));
                }
                let value = encode(&state);
                prop_assert_eq!(expiry_of(&value), Some(expiry(&state)));
                let read = decode(&value);
                prop_assert_eq!(read.as_ref(), Ok(&state));
                prop_assert!(fits(&state, &tier));
                prop_assert_eq!(read.map(|read| read.idle_at()), Ok(state.idle_at()));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(value in vec(any::<u8>(), 0..80)) {
            if let Ok(state) = decode(&value) {
                prop_assert_eq!(decode(&encode(&state)), Ok(state));
            }
            expiry_of(&value);
        }
    }

    #[test]
    fn values_have_the_documented_format() {
        let tier = Tier { requests: 5, period: Period::from_secs(60), algorithm: Algorithm::FixedWindow };
        let mut state = CounterState::unused(&tier, Timestamp::from_secs(90));
        state.take(&tier, Timestamp::from_secs(90), Hits(300));
        assert_eq!(encode(&state), [0x11, 120, 0, 0, 0, 0, 0xac, 2]);
        for (value, error) in [
            (&[][..], RecordError::InvalidField("format")),
            (&[0x21, 0, 0, 0, 0, 0, 0], RecordError::UnknownFormat(0x21)),
            (&[0x15, 0, 0, 0, 0], RecordError::UnknownFormat(0x15)),
            (&[0x11, 0, 0], RecordError::InvalidField("expiry")),
            (&[0x11, 0, 0, 0, 0, 0], RecordError::InvalidField("hits of the window")),
            (&[0x11, 0, 0, 0, 0, 0, 1, 9], RecordError::TrailingBytes(1)),
            (&[0x12, 0, 0, 0, 0, 0, 65], RecordError::InvalidField("number of spans")),
        ] {
            assert_eq!(decode(value), Err(error));
        }
    }
}
