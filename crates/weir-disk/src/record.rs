//! The records of the store on disk: one for each counter.
//!
//! The key is the text that names the counter: its path (as in the keys of a shared store), `}`, which no path
//! contains, then the algorithm and the period of its tier, such as `shop|tenant=acme}s1m`: `f` for a fixed window, `s`
//! for a sliding window, `b` for a token bucket, with a `c` in front if the rule counts rejected hits. The period of a
//! calendar is `d`, `w`, `m`, `q` or `y`. Counters of one
//! rule thus are beside each other, and share the beginning of their keys in a block.
//! Buckets that come with requests are beside each other too: the path of their name, such as `|key=user`, and after
//! the `}` a `p` for a paced one, or `r`, the tokens of a full bucket, of a refill, and the milliseconds between two,
//! such as `r5,5,60000`. A key that begins with a zero byte is the store's own.
//!
//! The value is binary, in the order below. Numbers are little-endian base 128 (LEB128), except where a size is given;
//! a time is the difference to the expiry in nanoseconds, modulo 2^64, with its sign in the lowest bit.
//!
//! - All: one byte, 16 times the version of the format, which is 1, plus the kind; four bytes, little-endian, the expiry, in
//!   seconds since the epoch, rounded up.
//! - Kind 1, a fixed window: the window's end; its hits.
//! - Kind 2, a sliding window: the start of the newest span; the number of spans; for each, oldest first, its last hit and
//!   its hits.
//! - Kind 3, a token bucket, and kind 4, one in debt: an instant; the tokens that the bucket lacked then, in units of 2^-31.
//! - Kind 5, a bucket that is refilled in steps, and kind 6, one that callers' times were used with: the tokens that it
//!   lacks; the last step, as the difference to the expiry in milliseconds.
//! - Kind 7, one with a session, and kind 8, one that callers' times were used with: the same; the start of the session, in
//!   the same way as the last step.
//! - Kind 9, a paced bucket: an instant; the tokens that it lacked then; four bytes: the time of a token in nanoseconds, an
//!   IEEE 754 number.
//!
//! States are exact: what is read is what was written.

use ring::digest::{SHA256, digest};
use weir_limit::{
    Hits, LimitCheck, OverLimitPolicy, Tier, Timestamp,
    algorithm::{CounterState, FixedWindow, SlidingWindow, Span, TokenBucket},
    request_bucket::{BucketKind, BucketName, PacedBucket, StepBucket, StepLimit, TokenTime},
};
use weir_store::path::{path_of, path_of_buckets, shortened};

const VERSION: u8 = 1;

const FIXED_WINDOW: u8 = 1;
const SLIDING_WINDOW: u8 = 2;
const TOKEN_BUCKET: u8 = 3;
const BUCKET_IN_DEBT: u8 = 4;
const STEPS: u8 = 5;
const STEPS_BY_CALLER: u8 = 6;
const SESSION: u8 = 7;
const SESSION_BY_CALLER: u8 = 8;
const PACED: u8 = 9;

/// The most spans that a value may have: more than a window ever has, so that a damaged value allocates little.
const MAX_SPANS: u64 = 64;

const NANOS: u64 = 1_000_000_000;
const MILLIS: u64 = 1_000;

/// What a counter is, as far as its state does not tell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CounterKind {
    Tier(Tier),
    Bucket(BucketKind),
}

impl CounterKind {
    /// For a bucket that comes with requests, a placeholder: its steps begin with the first request.
    pub(super) fn unused(&self, now: Timestamp) -> CounterState {
        match self {
            Self::Tier(tier) => CounterState::unused(tier, now),
            Self::Bucket(_) => CounterState::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("unknown format {0:#04x}")]
    UnknownFormat(u8),
    #[error("invalid field: {0}")]
    InvalidField(&'static str),
    #[error("{0} unexpected bytes at the end")]
    TrailingBytes(usize),
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().expect("it has 32 bytes")
}

pub(super) fn key(check: &LimitCheck<'_>, tier: &Tier) -> Box<[u8]> {
    let path = shortened(path_of(check), sha256);
    let mut key = String::with_capacity(path.len() + 12);
    key.push_str(&path);
    key.push('}');
    if check.over_limit_policy() == OverLimitPolicy::Count {
        key.push('c');
    }
    key.push(tier.algorithm.kind().letter());
    match tier.calendar() {
        Some(calendar) => key.push(calendar.unit.letter()),
        None => key.push_str(&tier.period.to_string()),
    }
    key.into_bytes().into()
}

/// Returns the beginning of the keys of all buckets of `name`, which no other keys have.
pub(super) fn bucket_prefix(name: &BucketName<'_>) -> Vec<u8> {
    let mut key = path_of_buckets(name, sha256).into_string().into_bytes();
    key.push(b'}');
    key
}

pub(super) fn bucket_key(name: &BucketName<'_>, kind: &BucketKind) -> Box<[u8]> {
    let mut key = bucket_prefix(name);
    match kind {
        BucketKind::Paced => key.push(b'p'),
        BucketKind::Steps(StepLimit { max, refill, period_ms }) => {
            key.extend_from_slice(format!("r{max},{refill},{period_ms}").as_bytes());
        }
    }
    key.into()
}

/// Returns the kind of the bucket whose key ends with `end` after its `}`.
pub fn bucket_kind(end: &str) -> Option<BucketKind> {
    if end == "p" {
        return Some(BucketKind::Paced);
    }
    let mut numbers = end.strip_prefix('r')?.split(',').map(|number| {
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse().ok().filter(|number| is_plain && (1..1 << 63).contains(number))
    });
    let limit = StepLimit { max: numbers.next()??, refill: numbers.next()??, period_ms: numbers.next()?? };
    numbers.next().is_none().then_some(BucketKind::Steps(limit))
}

/// In seconds since the epoch, rounded up: a record may be removed from then on.
pub(super) fn expiry(state: &CounterState) -> u32 {
    u32::try_from(state.idle_at().as_nanos().div_ceil(NANOS)).unwrap_or(u32::MAX)
}

pub(super) fn expiry_of(value: &[u8]) -> Option<u32> {
    let (format, rest) = value.split_first()?;
    (format >> 4 == VERSION).then_some(())?;
    rest.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

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
        CounterState::Steps(bucket, _, by_caller) => {
            begin(&mut value, if *by_caller { STEPS_BY_CALLER } else { STEPS });
            put_steps(&mut value, expiry, *bucket);
        }
        CounterState::Session(session, _, by_caller) => {
            begin(&mut value, if *by_caller { SESSION_BY_CALLER } else { SESSION });
            put_steps(&mut value, expiry, session.0);
            put_difference(&mut value, u64::from(expiry) * MILLIS, session.1);
        }
        CounterState::Paced(bucket, token) => {
            begin(&mut value, PACED);
            put_time(&mut value, base, bucket.as_of());
            put(&mut value, bucket.taken());
            value.extend(token.bits().to_le_bytes());
        }
    }
    value
}

pub fn decode(value: &[u8]) -> Result<CounterState, RecordError> {
    let (&format, rest) = value.split_first().ok_or(RecordError::InvalidField("format"))?;
    if format >> 4 != VERSION {
        return Err(RecordError::UnknownFormat(format));
    }
    let (expiry, mut rest) = rest.split_first_chunk().ok_or(RecordError::InvalidField("expiry"))?;
    let expiry = u32::from_le_bytes(*expiry);
    let base = u64::from(expiry) * NANOS;
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
        kind @ (STEPS | STEPS_BY_CALLER) => {
            let bucket = take_steps(rest, expiry)?;
            CounterState::restored_steps(bucket, None, idle_at, kind == STEPS_BY_CALLER)
        }
        kind @ (SESSION | SESSION_BY_CALLER) => {
            let bucket = take_steps(rest, expiry)?;
            let start = take_difference(rest, u64::from(expiry) * MILLIS, "start of the session")?;
            CounterState::restored_steps(bucket, Some(start), idle_at, kind == SESSION_BY_CALLER)
        }
        PACED => {
            let as_of = take_time(rest, base, "instant of the bucket")?;
            let taken = take(rest, "tokens")?;
            let invalid = RecordError::InvalidField("time of a token");
            let (bits, after) = rest.split_first_chunk().ok_or(invalid)?;
            *rest = after;
            let pace = TokenTime::from_bits(u32::from_le_bytes(*bits));
            if !pace.is_valid() {
                return Err(invalid);
            }
            CounterState::Paced(PacedBucket::new(as_of, taken), pace)
        }
        _ => return Err(RecordError::UnknownFormat(format)),
    };
    if rest.is_empty() { Ok(state) } else { Err(RecordError::TrailingBytes(rest.len())) }
}

pub(super) fn fits(state: &CounterState, kind: &CounterKind) -> bool {
    match kind {
        CounterKind::Tier(tier) => state.is_of(tier.algorithm),
        CounterKind::Bucket(BucketKind::Paced) => matches!(state, CounterState::Paced(..)),
        CounterKind::Bucket(BucketKind::Steps(_)) => {
            matches!(state, CounterState::Steps(..) | CounterState::Session(..))
        }
    }
}

fn put(value: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        value.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    value.push(number.to_le_bytes()[0]);
}

fn put_time(value: &mut Vec<u8>, base: u64, instant: Timestamp) {
    put_difference(value, base, instant.as_nanos());
}

fn put_difference(value: &mut Vec<u8>, base: u64, number: u64) {
    let before = base.wrapping_sub(number).cast_signed();
    put(value, (before << 1 ^ before >> 63).cast_unsigned());
}

fn put_steps(value: &mut Vec<u8>, expiry: u32, bucket: StepBucket) {
    put(value, bucket.taken());
    put_difference(value, u64::from(expiry) * MILLIS, bucket.stepped_at());
}

fn take_steps(rest: &mut &[u8], expiry: u32) -> Result<StepBucket, RecordError> {
    let taken = take(rest, "tokens")?;
    Ok(StepBucket::new(taken, take_difference(rest, u64::from(expiry) * MILLIS, "last step")?))
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
    take_difference(rest, base, field).map(Timestamp::from_nanos)
}

fn take_difference(rest: &mut &[u8], base: u64, field: &'static str) -> Result<u64, RecordError> {
    let folded = take(rest, field)?;
    let before = (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
    Ok(base.wrapping_sub(before.cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use weir_limit::{
        Bucket, KeyHasher, Period, Refill,
        request_bucket::{BucketRequest, Pace, PacedRequest, StepRequest, decide_bucket},
    };

    fn a_tier() -> impl Strategy<Value = Tier> {
        (0..4_u8, 1_u64..40_000_000_000_000_000).prop_map(|(algorithm, period)| {
            let period = Period::from_nanos(period);
            let bucket = |refill| Tier::token_bucket(7, period, Bucket { refill, ..Bucket::of(9) });
            match algorithm {
                0 => Tier::fixed_window(7, period),
                1 => Tier::sliding_window(7, period),
                2 => bucket(Refill::Continuous),
                _ => bucket(Refill::Step),
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            tier in a_tier(),
            hits in vec((any::<u32>(), 0_u64..3, any::<bool>()), 0..20),
            start in any::<u64>(),
        ) {
            let mut now = Timestamp::from_nanos(start);
            let mut state = CounterState::unused(&tier, now);
            for (step, hits, given_back) in hits {
                now = now.after(Period::from_nanos(u64::from(step) * (tier.period.as_nanos() / 1_000_000_000).max(1)));
                if given_back {
                    state.give_back(&tier, now, Hits(hits));
                } else {
                    state.take(&tier, now, Hits(hits));
                }
                let value = encode(&state);
                prop_assert_eq!(expiry_of(&value), Some(expiry(&state)));
                let read = decode(&value);
                prop_assert_eq!(read.as_ref(), Ok(&state));
                prop_assert!(fits(&state, &CounterKind::Tier(tier.clone())));
                prop_assert_eq!(read.map(|read| read.idle_at()), Ok(state.idle_at()));
            }
        }

        #[test]
        fn buckets_that_come_with_requests_are_read_as_they_were_written(
            now in any::<u64>(),
            max in 1..1_u64 << 63,
            refill in 1..1_u64 << 63,
            period_ms in 1..1_u64 << 40,
            at in proptest::option::of(0..1_u64 << 63),
            take in 1..1_u64 << 63,
            seconds in 1..i64::MAX,
            session: bool,
        ) {
            let (now, limit) = (Timestamp::from_nanos(now), StepLimit { max, refill, period_ms });
            let pace = Pace::new(i64::try_from(refill).expect("63 bits"), seconds).expect("a pace");
            let quantity = i64::try_from(take.min(max)).expect("63 bits");
            for request in [
                BucketRequest::Step(StepRequest { limit, take, at, strict: false, session }),
                BucketRequest::Paced(PacedRequest { capacity: max, pace, quantity }),
            ] {
                let mut state = None;
                decide_bucket(&request, &mut state, now);
                let state = state.as_ref().expect("tokens were taken");
                let value = encode(state);
                prop_assert_eq!(expiry_of(&value), Some(expiry(state)));
                prop_assert_eq!(&decode(&value), &Ok(state.clone()));
                prop_assert!(fits(state, &CounterKind::Bucket(request.kind())));
                let name = BucketName::new(KeyHasher::random(), b"a}b");
                let key = bucket_key(&name, &request.kind());
                let end = key.strip_prefix(&bucket_prefix(&name)[..]).expect("it begins so");
                prop_assert_eq!(bucket_kind(std::str::from_utf8(end).expect("text")), Some(request.kind()));
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
        let tier = Tier::fixed_window(5, Period::from_secs(60));
        let mut state = CounterState::unused(&tier, Timestamp::from_secs(90));
        state.take(&tier, Timestamp::from_secs(90), Hits(300));
        assert_eq!(encode(&state), [0x11, 120, 0, 0, 0, 0, 0xac, 2]);
        for (value, error) in [
            (&[][..], RecordError::InvalidField("format")),
            (&[0x21, 0, 0, 0, 0, 0, 0], RecordError::UnknownFormat(0x21)),
            (&[0x1a, 0, 0, 0, 0], RecordError::UnknownFormat(0x1a)),
            (&[0x19, 0, 0, 0, 0, 0, 1, 0, 0, 0xc0, 0x7f], RecordError::InvalidField("time of a token")),
            (&[0x15, 0, 0, 0, 0, 3], RecordError::InvalidField("last step")),
            (&[0x11, 0, 0], RecordError::InvalidField("expiry")),
            (&[0x11, 0, 0, 0, 0, 0], RecordError::InvalidField("hits of the window")),
            (&[0x11, 0, 0, 0, 0, 0, 1, 9], RecordError::TrailingBytes(1)),
            (&[0x12, 0, 0, 0, 0, 0, 65], RecordError::InvalidField("number of spans")),
        ] {
            assert_eq!(decode(value), Err(error));
        }
    }

    #[test]
    fn buckets_of_a_name_have_keys_beside_each_other() {
        let name = |key| BucketName::new(KeyHasher::random(), key);
        let steps = BucketKind::Steps(StepLimit { max: 5, refill: 6, period_ms: 60_000 });
        assert_eq!(&*bucket_key(&name(b"user"), &BucketKind::Paced), b"|key=user}p");
        assert_eq!(&*bucket_key(&name(b"user"), &steps), b"|key=user}r5,6,60000");
        assert_eq!(&*bucket_key(&name(b"\xff}"), &BucketKind::Paced), b"|key=%25FF%7D}p");
        for end in ["", "r", "r1,2", "r1,2,3,4", "r0,1,1", "r1,+2,3", "r1,2,9223372036854775808", "pp", "f1m"]
        {
            assert_eq!(bucket_kind(end), None, "{end}");
        }
    }
}
