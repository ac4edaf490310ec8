//! The encoding of a counter's state as text, as Redis and other stores outside this process keep it.
//!
//! | algorithm | text | fields |
//! | --- | --- | --- |
//! | fixed window | `17` | the hits of the window |
//! | sliding window | `w 7 80000000 -20000000 2 1000000 1` | the writer; the instant at which the newest span began; then for each span, oldest first, the time from that instant to the span's last hit, and the span's hits |
//! | token bucket | `b 7 90000000 1.5` | the writer; an instant, and the tokens that the bucket lacked then |
//! | token bucket in debt | `d 7 90000000 9.5` | the same; the tokens may exceed the burst |
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

use weir_limit::{
    Algorithm, Hits, Tier, Timestamp,
    algorithm::{CounterState, FixedWindow, SlidingWindow, Span, TokenBucket},
};

const SLIDING_WINDOW: &str = "w";
const TOKEN_BUCKET: &str = "b";
const BUCKET_IN_DEBT: &str = "d";

/// A bucket counts in units of 2^-31 tokens.
const UNITS_PER_TOKEN: f64 = 2_147_483_648.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("unknown format")]
    UnknownFormat,
    #[error("invalid field: {0}")]
    InvalidField(&'static str),
    #[error("unexpected text at the end")]
    TrailingText,
}

/// Decodes the state of a counter, and its writer: 0 for a fixed window, which is the one that contains `at`.
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

pub fn window(tier: &Tier, at: Timestamp, used: u64) -> CounterState {
    CounterState::FixedWindow(FixedWindow::new(tier.window(at).1, Hits(used)))
}

/// An instant in microseconds since the epoch.
pub const fn timestamp(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
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

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use weir_limit::{Bucket, Period, Refill};

    fn tier(algorithm: Algorithm) -> Tier {
        Tier::new(5, Period::from_secs(60), algorithm)
    }

    fn bucket() -> Algorithm {
        Algorithm::TokenBucket(Bucket { burst: 9, refill: Refill::Continuous, strict: false })
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
            assert_eq!(decode(tier, at, text), Ok((state, version)), "{text}");
        }
    }

    #[test]
    fn rounding_never_admits_more() {
        assert_eq!(units(0.1), 214_748_365);
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
        fn every_span_is_decoded(
            opened in 1_000_000_000..2_000_000_000_000_000_u64,
            spans in vec((-60_000_000..60_000_000_i64, any::<u32>()), 0..15),
        ) {
            let written = spans.iter().map(|(last, hits)| format!(" {last} {hits}"));
            let text: String = [format!("w 7 {opened}")].into_iter().chain(written).collect();
            let spans = spans.into_iter().map(|(last, hits)| Span {
                last: timestamp(opened.saturating_add_signed(last)),
                hits,
            });
            let tier = tier(Algorithm::SlidingWindow);
            let window = SlidingWindow::new(timestamp(opened), spans);
            let state = CounterState::from_sliding_window(window, &tier);
            prop_assert_eq!(decode(&tier, timestamp(opened), &text), Ok((state, 7)));
        }

        #[test]
        fn decoding_never_panics(text in "[wbd0-9 .e+-]{0,40}|.{0,20}") {
            for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, bucket()] {
                let _ = decode(&tier(algorithm), Timestamp::from_secs(90), &text);
            }
        }
    }
}
