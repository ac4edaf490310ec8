//! The encoding of a counter's state as text, as Redis and other stores outside this process keep it.
//!
//! | algorithm | text | fields |
//! | --- | --- | --- |
//! | fixed window | `17` | the hits of the window |
//! | sliding window | `w 7 80000000 -20000000 2 1000000 1` | the writer; the instant at which the newest span began; then for each span, oldest first, the time from that instant to the span's last hit, and the span's hits |
//! | token bucket | `b 7 90000000 1.5` | the writer; an instant, and the tokens that the bucket lacked then |
//! | token bucket in debt | `d 7 90000000 9.5` | the same; the tokens may exceed the burst |
//! | bucket of a request, in steps | `s 3 90000 0 150` | the tokens that it lacks, the last step in milliseconds since the epoch, 1 if it was used with callers' times, and the second from which it is unused |
//! | the same with a session | `n 3 90000 0 150 90000` | the same, and the start of the session in milliseconds |
//! | bucket of a request, paced | `p 90000000000 3 1315859240` | an instant in nanoseconds, the whole tokens that it lacked then, and the bits of the time of a token |
//!
//! The writer is the number of the instance that has changed it last: see
//! [`Exchange::writer`](super::remote::Exchange::writer). Instants are whole microseconds since the Unix epoch, times are
//! whole microseconds, and tokens are decimal fractions. The text of a fixed window is the value that
//! envoyproxy/ratelimit keeps, so it does not hold the window's end: the counter's key names the window.
//!
//! The first letter is the version of the format. A new format takes another letter; a decoder rejects letters that it
//! does not know.
//!
//! `take.lua` reads and writes the same texts inside Redis.

use std::fmt::Write as _;

use weir_limit::{
    Algorithm, Hits, NANOS_PER_SECOND, Tier, Timestamp,
    algorithm::{CounterState, FixedWindow, IdleAt, SlidingWindow, Span, TokenBucket},
    request_bucket::{PacedBucket, StepBucket, TokenTime},
};

const SLIDING_WINDOW: &str = "w";
const TOKEN_BUCKET: &str = "b";
const BUCKET_IN_DEBT: &str = "d";
const STEPS: &str = "s";
const SESSION: &str = "n";
const PACED: &str = "p";

/// A bucket counts in units of 2^-31 tokens.
const UNITS_PER_TOKEN: f64 = 2_147_483_648.0;

/// The reason why a text is not the state of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text does not begin with the letter of the algorithm's format.
    #[error("unknown format")]
    UnknownFormat,
    /// A field is missing, or is not a number in its range.
    #[error("invalid field: {0}")]
    InvalidField(&'static str),
    /// There is more text after the last field.
    #[error("unexpected text at the end")]
    TrailingText,
}

/// Decodes the state of a counter, and its writer: 0 for a fixed window, which is the one that contains `at`.
///
/// # Errors
///
/// Returns an error if `text` is not in the format of the tier's algorithm.
pub fn decode(tier: &Tier, at: Timestamp, text: &str) -> Result<(CounterState, u64), DecodeError> {
    let mut fields = text.split(' ');
    let writer;
    let state = match tier.algorithm {
        // the store counts windows only
        Algorithm::FixedWindow => {
            return Ok((window(tier, at, number(Some(text), "hits")?), 0));
        }
        Algorithm::SlidingWindow => {
            expect_format(fields.next(), SLIDING_WINDOW)?;
            writer = number(fields.next(), "writer")?;
            let opened: u64 = number(fields.next(), "start of the newest span")?;
            let mut spans = Vec::new();
            while let Some(last) = fields.next() {
                let last = opened.checked_add_signed(number(Some(last), "last hit of a span")?);
                let last = last.ok_or(DecodeError::InvalidField("last hit of a span"))?;
                spans.push(Span { last: timestamp(last), hits: number(fields.next(), "hits of a span")? });
            }
            CounterState::from_sliding_window(SlidingWindow::new(timestamp(opened), spans), tier)
        }
        Algorithm::TokenBucket(_) => {
            let format = fields.next();
            let in_debt = format == Some(BUCKET_IN_DEBT);
            if !in_debt {
                expect_format(format, TOKEN_BUCKET)?;
            }
            writer = number(fields.next(), "writer")?;
            let as_of = timestamp(number(fields.next(), "instant of the bucket")?);
            let tokens: f64 = number(fields.next(), "tokens")?;
            if !tokens.is_finite() || tokens < 0.0 {
                return Err(DecodeError::InvalidField("tokens"));
            }
            CounterState::from_token_bucket(TokenBucket::new(as_of, units(tokens), in_debt), tier)
        }
    };
    if fields.next().is_some() { Err(DecodeError::TrailingText) } else { Ok((state, writer)) }
}

/// Encodes a state, with its `writer` unless it is a fixed window. Rounding never admits more: instants go up to the
/// next microsecond, tokens to the next number with 53 significant bits.
pub fn encode(state: &CounterState, writer: u64) -> String {
    match state {
        CounterState::FixedWindow(_) => state.used().0.to_string(),
        CounterState::SlidingWindow(..) | CounterState::OneSpan { .. } => {
            let window = state.sliding_window().unwrap_or_default();
            let opened = micros_ceil(window.opened());
            let mut text = format!("{SLIDING_WINDOW} {writer} {opened}");
            for span in window.spans() {
                let last = micros_ceil(span.last).cast_signed().wrapping_sub(opened.cast_signed());
                // writing to a string does not fail
                let _ = write!(text, " {last} {}", span.hits);
            }
            text
        }
        CounterState::TokenBucket(bucket, _) => {
            let (as_of, tokens) = (micros_ceil(bucket.as_of()), tokens(bucket.taken()));
            let format = if bucket.is_in_debt() { BUCKET_IN_DEBT } else { TOKEN_BUCKET };
            format!("{format} {writer} {as_of} {tokens}")
        }
        CounterState::Steps(bucket, idle_at, by_caller) => steps(STEPS, *bucket, *idle_at, *by_caller),
        CounterState::Session(session, idle_at, by_caller) => {
            let (bucket, start) = **session;
            format!("{} {start}", steps(SESSION, bucket, *idle_at, *by_caller))
        }
        CounterState::Paced(bucket, token) => {
            format!("{PACED} {} {} {}", bucket.as_of().as_nanos(), bucket.taken(), token.bits())
        }
    }
}

fn steps(format: &str, bucket: StepBucket, idle_at: IdleAt, by_caller: bool) -> String {
    let (taken, stepped_at, idle_at) = (bucket.taken(), bucket.stepped_at(), idle_at.instant());
    format!("{format} {taken} {stepped_at} {} {}", u8::from(by_caller), idle_at.as_nanos() / NANOS_PER_SECOND)
}

/// Decodes the state of a bucket whose parameters come with each request.
///
/// # Errors
///
/// Returns an error if `text` is not in the format of such a bucket.
pub fn decode_bucket(text: &str) -> Result<CounterState, DecodeError> {
    let mut fields = text.split(' ');
    let state = match fields.next() {
        Some(format @ (STEPS | SESSION)) => {
            let bucket =
                StepBucket::new(number(fields.next(), "tokens")?, number(fields.next(), "last step")?);
            let by_caller: u8 = number(fields.next(), "kind of clock")?;
            let idle_at = Timestamp::from_secs(number(fields.next(), "expiry")?);
            let (idle_at, by_caller) = (IdleAt::of(idle_at), by_caller != 0);
            if format == SESSION {
                let start = number(fields.next(), "start of the session")?;
                CounterState::Session(Box::new((bucket, start)), idle_at, by_caller)
            } else {
                CounterState::Steps(bucket, idle_at, by_caller)
            }
        }
        Some(PACED) => {
            let as_of = Timestamp::from_nanos(number(fields.next(), "instant of the bucket")?);
            let bucket = PacedBucket::new(as_of, number(fields.next(), "tokens")?);
            let token = TokenTime::from_bits(number(fields.next(), "time of a token")?);
            CounterState::Paced(bucket, token)
        }
        _ => return Err(DecodeError::UnknownFormat),
    };
    if fields.next().is_some() { Err(DecodeError::TrailingText) } else { Ok(state) }
}

/// A window with `used` hits at `at`.
pub fn window(tier: &Tier, at: Timestamp, used: u64) -> CounterState {
    CounterState::FixedWindow(FixedWindow::new(at.window_end(tier.period), Hits(used)))
}

/// An instant in microseconds since the epoch.
pub const fn timestamp(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}

const fn micros_ceil(instant: Timestamp) -> u64 {
    instant.as_nanos().div_ceil(1_000)
}

fn expect_format(field: Option<&str>, format: &str) -> Result<(), DecodeError> {
    if field == Some(format) { Ok(()) } else { Err(DecodeError::UnknownFormat) }
}

fn number<T: std::str::FromStr>(field: Option<&str>, name: &'static str) -> Result<T, DecodeError> {
    field.and_then(|field| field.parse().ok()).ok_or(DecodeError::InvalidField(name))
}

/// Rounds up. The tokens that `take.lua` writes are multiples of a unit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is not negative, and saturates"
)]
fn units(tokens: f64) -> u64 {
    (tokens * UNITS_PER_TOKEN).ceil() as u64
}

/// Rounds up to a number that an `f64` holds.
#[expect(clippy::cast_precision_loss, reason = "the loss is rounded up")]
fn tokens(units: u64) -> f64 {
    let nearest = units as f64;
    let up = if u128::from(units) > exact(nearest) { nearest.next_up() } else { nearest };
    up / UNITS_PER_TOKEN
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is a whole number up to 2^64"
)]
const fn exact(whole: f64) -> u128 {
    whole as u128
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use weir_limit::{Bucket, Period, Refill};

    fn tier(algorithm: Algorithm) -> Tier {
        Tier { requests: 5, period: Period::from_secs(60), algorithm }
    }

    fn bucket() -> Algorithm {
        Algorithm::TokenBucket(Bucket { burst: 9, refill: Refill::Continuous, strict: false })
    }

    #[test]
    fn buckets_of_requests_have_the_documented_format() {
        let (steps, idle_at) = (StepBucket::new(3, 90_000), IdleAt::of(Timestamp::from_secs(150)));
        let paced = PacedBucket::new(Timestamp::from_secs(90), 3);
        let most = StepBucket::new(i64::MAX.unsigned_abs(), u64::MAX);
        for (text, state) in [
            ("s 3 90000 0 150", CounterState::Steps(steps, idle_at, false)),
            ("s 9223372036854775807 18446744073709551615 1 150", CounterState::Steps(most, idle_at, true)),
            ("n 3 90000 0 150 90000", CounterState::Session(Box::new((steps, 90_000)), idle_at, false)),
            ("p 90000000000 3 1315859240", CounterState::Paced(paced, TokenTime::from_bits(1_315_859_240))),
        ] {
            assert_eq!(encode(&state, 7), text);
            assert_eq!(decode_bucket(text), Ok(state));
        }
        for (text, error) in [
            ("b 7 90000000 1.5", DecodeError::UnknownFormat),
            ("", DecodeError::UnknownFormat),
            ("s 3 90000 0", DecodeError::InvalidField("expiry")),
            ("n 3 90000 0 150", DecodeError::InvalidField("start of the session")),
            ("p 1 -3 4", DecodeError::InvalidField("tokens")),
            ("s 3 90000 0 150 7", DecodeError::TrailingText),
        ] {
            assert_eq!(decode_bucket(text), Err(error), "{text}");
        }
    }

    #[test]
    fn states_have_the_documented_format() {
        let at = Timestamp::from_secs(90);
        let spans = vec![
            Span { last: Timestamp::from_secs(60), hits: 2 },
            Span { last: Timestamp::from_secs(81), hits: 1 },
        ];
        let (fixed, sliding, bucket) =
            (tier(Algorithm::FixedWindow), tier(Algorithm::SlidingWindow), tier(bucket()));
        let window = SlidingWindow::new(Timestamp::from_secs(80), spans);
        for (tier, text, version, state) in [
            (&fixed, "3", 0, CounterState::FixedWindow(FixedWindow::new(Timestamp::from_secs(120), Hits(3)))),
            (
                &sliding,
                "w 7 80000000 -20000000 2 1000000 1",
                7,
                CounterState::from_sliding_window(window, &sliding),
            ),
            (
                &bucket,
                "b 281474976710655 90000000 1.5",
                (1 << 48) - 1,
                CounterState::from_token_bucket(TokenBucket::new(at, 3 << 30, false), &bucket),
            ),
            (
                &bucket,
                "d 7 90000000 9.5",
                7,
                CounterState::from_token_bucket(TokenBucket::new(at, 19 << 30, true), &bucket),
            ),
        ] {
            assert_eq!(encode(&state, version), text);
            assert_eq!(decode(tier, at, text), Ok((state, version)), "{text}");
        }
    }

    #[test]
    fn broken_texts_are_errors() {
        let at = Timestamp::from_secs(90);
        for (algorithm, texts) in [
            (Algorithm::FixedWindow, &["", "x", "-1", "1 2", "s 1", "18446744073709551616"][..]),
            (
                Algorithm::SlidingWindow,
                &[
                    "",
                    "w",
                    "b 1 1 2",
                    "v 1 1",
                    "w 1",
                    "w 1 1 2",
                    "w 1 1 -2 3",
                    "w -1 1 2 3",
                    "w 1 1 2 -3",
                    "w x",
                    "w 1 1 2 3 ",
                    "s 1 1 2 3",
                ],
            ),
            (
                bucket(),
                &[
                    "",
                    "b",
                    "b 1",
                    "b 1 2",
                    "w 1 1 2 3",
                    "b 1 1 2 3",
                    "b 1 -1 2",
                    "b x 1 2",
                    "b 1 1 -2",
                    "b 1 1 inf",
                    "b 1 1 NaN",
                    "b 1 1 2 ",
                ],
            ),
        ] {
            for text in texts {
                assert!(decode(&tier(algorithm), at, text).is_err(), "{text}");
            }
        }
        assert_eq!(decode(&tier(bucket()), at, "c 1 1 2"), Err(DecodeError::UnknownFormat));
    }

    proptest! {
        #[test]
        fn a_state_in_microseconds_survives_the_round_trip(
            opened in 1_000_000_000..2_000_000_000_000_000_u64,
            spans in vec((-60_000_000..60_000_000_i64, any::<u32>()), 0..15),
            taken in 0..1_u64 << 53,
            in_debt in any::<bool>(),
            used in any::<u64>(),
            version in any::<u64>(),
        ) {
            let at = timestamp(opened);
            let fixed_state = window(&tier(Algorithm::FixedWindow), at, used);
            let text = encode(&fixed_state, version);
            prop_assert_eq!(decode(&tier(Algorithm::FixedWindow), at, &text), Ok((fixed_state, 0)));
            let spans = spans.into_iter().map(|(last, hits)| Span {
                last: timestamp(opened.saturating_add_signed(last)),
                hits,
            });
            let (sliding, bucket) = (tier(Algorithm::SlidingWindow), tier(bucket()));
            for (tier, state) in [
                (&sliding, CounterState::from_sliding_window(SlidingWindow::new(at, spans), &sliding)),
                (&bucket, CounterState::from_token_bucket(TokenBucket::new(at, taken, in_debt), &bucket)),
            ] {
                prop_assert_eq!(decode(tier, at, &encode(&state, version)), Ok((state, version)));
            }
        }

        #[test]
        fn rounding_never_admits_more(nanos in any::<u64>(), taken in 0..1_u64 << 63) {
            let tier = tier(bucket());
            let state = TokenBucket::new(Timestamp::from_nanos(nanos), taken, false);
            let state = CounterState::from_token_bucket(state, &tier);
            let decoded = decode(&tier, Timestamp::default(), &encode(&state, 1));
            let Ok((CounterState::TokenBucket(decoded, _), 1)) = decoded else {
                return Err(TestCaseError::fail("no bucket"));
            };
            prop_assert!(decoded.as_of() >= Timestamp::from_nanos(nanos) && decoded.taken() >= taken);
        }

        #[test]
        fn decoding_never_panics(text in "[wbd0-9 .e+-]{0,40}|.{0,20}") {
            for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, bucket()] {
                let _ = decode(&tier(algorithm), Timestamp::from_secs(90), &text);
            }
        }
    }
}
