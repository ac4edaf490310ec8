//! The scripts that run in Redis: what they are told, and what they answer.

use std::sync::LazyLock;

use redis::Value;
use smallvec::SmallVec;

use crate::{
    limit::{
        Algorithm, Hits, Period, Refill, Tier, Timestamp,
        algorithm::{Counter, FixedWindow, SlidingWindow, Span, TokenBucket},
    },
    store::remote::{Op, Reply, Target},
};

use super::name;

/// A script, and the name by which Redis knows it.
pub(super) struct Script {
    /// In Lua.
    pub(super) text: &'static str,
    sha: LazyLock<String>,
}

/// Counts, takes and grants.
pub(super) static TAKE: Script = Script::new(include_str!("take.lua"), take_sha);
/// Counts the instances.
pub(super) static HEARTBEAT: Script = Script::new(include_str!("heartbeat.lua"), heartbeat_sha);
/// All of them.
pub(super) static ALL: [&Script; 2] = [&TAKE, &HEARTBEAT];

/// Far more hits than any limit admits, and few enough that Lua and Redis add them up without loss.
pub(super) const MANY: u64 = 1 << 48;

/// What the script made of a command.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// It was carried out.
    Done(Reply),
    /// It was not: the window that it is about is not the one that is open at this instant.
    Moved(Timestamp),
}

/// What a script is told: texts, one behind the other in one piece of memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    text: String,
    /// Where each of them ends.
    ends: Vec<usize>,
}

// === impl Script ===

impl Script {
    const fn new(text: &'static str, sha: fn() -> String) -> Self {
        Self { text, sha: LazyLock::new(sha) }
    }

    /// Its SHA-1, which `EVALSHA` wants.
    pub(super) fn sha(&self) -> &str {
        &self.sha
    }
}

fn take_sha() -> String {
    redis::Script::new(TAKE.text).get_hash().to_owned()
}

fn heartbeat_sha() -> String {
    redis::Script::new(HEARTBEAT.text).get_hash().to_owned()
}

/// The arguments of [`TAKE`] for `op` on `target` in the window of `at`. `now` is none in production, where the clock is
/// Redis'.
pub(super) fn arguments(
    target: &Target,
    op: Op,
    at: Timestamp,
    now: Option<Timestamp>,
    jitter: Period,
) -> Arguments {
    let many = MANY.cast_signed();
    let (name, hits, want, hold) = match op {
        Op::Add { hits } => ("add", hits.clamp(-many, many), 0, 0),
        // of an instant that is too early older hits would be given back, of one that is too late others' younger ones
        Op::Return { hits, until } => ("return", hits.min(MANY).cast_signed(), 0, micros(until)),
        Op::Take { hits } => ("take", hits.min(MANY).cast_signed(), 0, 0),
        Op::Grant { least, want, hold } => {
            // a little longer than asked for, never shorter
            let hold = hold.as_nanos().div_ceil(1_000);
            ("grant", least.clamp(1, MANY).cast_signed(), want.min(MANY), hold)
        }
    };
    let mut arguments = Arguments::with_capacity(64 + 64 * target.tiers.len());
    arguments.add(name);
    arguments.add_time(now);
    arguments.add_number(hits);
    arguments.add_number(want);
    arguments.add_number(hold);
    arguments.add_number(jitter.as_nanos() / 1_000_000);
    for tier in &target.tiers {
        describe(tier, at, &mut arguments);
    }
    arguments
}

/// The seven arguments of a tier.
fn describe(tier: &Tier, at: Timestamp, arguments: &mut Arguments) {
    let start = name::window_start(tier, at);
    let bucket = tier.bucket();
    let mode = match (bucket.refill, bucket.strict) {
        (Refill::Continuous, false) => "",
        (Refill::Continuous, true) => "!",
        (Refill::Step, false) => "s",
        (Refill::Step, true) => "s!",
    };
    let kind = match tier.algorithm {
        Algorithm::FixedWindow => "f",
        Algorithm::SlidingWindow => "s",
        Algorithm::TokenBucket(_) => "b",
    };
    arguments.add(kind);
    arguments.add_number(tier.requests);
    // a little longer than it is, never shorter
    for time in [tier.period.as_nanos(), start.as_nanos(), at.window_end(tier.period).as_nanos()] {
        arguments.add_number(time.div_ceil(1_000));
    }
    arguments.add_number(bucket.burst);
    arguments.add(mode);
}

// === impl Arguments ===

impl Arguments {
    fn with_capacity(bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes), ends: Vec::with_capacity(16) }
    }

    pub(super) fn add(&mut self, argument: &str) {
        self.text.push_str(argument);
        self.ends.push(self.text.len());
    }

    pub(super) fn add_number(&mut self, number: impl itoa::Integer) {
        self.add(itoa::Buffer::new().format(number));
    }

    /// The time by which the script is to go; nothing in production, where it asks Redis.
    pub(super) fn add_time(&mut self, now: Option<Timestamp>) {
        match now {
            Some(now) => self.add_number(micros(now)),
            None => self.add(""),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// All of them without anything between.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }
}

/// Whole microseconds, as Redis' clock tells them.
pub(super) fn micros(instant: Timestamp) -> u64 {
    instant.as_nanos() / 1_000
}

fn from_micros(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}

/// The clock in the answer to `TIME`.
pub(super) fn time(value: &Value) -> Option<Timestamp> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(value.clone()).ok()?;
    Some(from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

/// What [`TAKE`] answered about `target` in the window of `at`; none if that makes no sense.
pub(super) fn answer(value: &Value, target: &Target, at: Timestamp) -> Option<Answer> {
    let Value::Array(parts) = value else { return None };
    let texts: Option<SmallVec<[&str; 4]>> = parts.iter().map(text).collect();
    let texts = texts?;
    match texts.as_slice() {
        ["moved", now] => Some(Answer::Moved(from_micros(now.parse().ok()?))),
        [granted, _now, states @ ..] if states.len() == target.tiers.len() => {
            let counters = target.tiers.iter().zip(states).map(|(tier, state)| counter(tier, at, state));
            Some(Answer::Done(Reply {
                granted: granted.parse().ok()?,
                counters: counters.collect::<Option<_>>()?,
            }))
        }
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The counter of a state.
fn counter(tier: &Tier, at: Timestamp, state: &str) -> Option<Counter> {
    let mut words = state.split(' ');
    Some(match tier.algorithm {
        Algorithm::FixedWindow => window(tier, at, state.parse().ok()?),
        Algorithm::SlidingWindow => {
            words.next().filter(|kind| *kind == "s")?;
            let opened: u64 = words.next()?.parse().ok()?;
            let mut spans = Vec::new();
            while let Some(last) = words.next() {
                let last = opened.checked_add_signed(last.parse().ok()?)?;
                spans.push(Span { last: from_micros(last), hits: words.next()?.parse().ok()? });
            }
            Counter::of_sliding_window(SlidingWindow::new(from_micros(opened), spans), tier)
        }
        Algorithm::TokenBucket(_) => {
            words.next().filter(|kind| *kind == "b")?;
            let as_of = from_micros(words.next()?.parse().ok()?);
            let taken: f64 = words.next()?.parse().ok().filter(|taken: &f64| *taken >= 0.0)?;
            Counter::of_token_bucket(TokenBucket::new(as_of, units(taken)), tier)
        }
    })
}

/// The counter of the fixed window that `at` lies in.
pub(super) fn window(tier: &Tier, at: Timestamp, used: u64) -> Counter {
    Counter::FixedWindow(FixedWindow::new(at.window_end(tier.period), Hits(used)))
}

/// `tokens` in 2^-32 of them, rounded up; the script's are multiples of that already.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is not negative, and saturates"
)]
fn units(tokens: f64) -> u64 {
    (tokens * 4_294_967_296.0).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Bucket, Refused};

    fn bulk(texts: &[&str]) -> Value {
        Value::Array(texts.iter().map(|text| Value::BulkString(text.as_bytes().to_vec())).collect())
    }

    fn target(algorithm: Algorithm) -> Target {
        let tier = Tier { requests: 5, period: Period::from_secs(60), algorithm };
        Target { path: "d_k_v_".into(), tiers: vec![tier], refused: Refused::Vanish }
    }

    #[test]
    fn states_become_counters() {
        let at = Timestamp::from_secs(90);
        let spans = vec![
            Span { last: Timestamp::from_secs(60), hits: 2 },
            Span { last: Timestamp::from_secs(81), hits: 1 },
        ];
        let bucket = Algorithm::TokenBucket(Bucket { burst: 9, refill: Refill::Continuous, strict: false });
        for (algorithm, state, counter) in [
            (
                Algorithm::FixedWindow,
                "3",
                Counter::FixedWindow(FixedWindow::new(Timestamp::from_secs(120), Hits(3))),
            ),
            (
                Algorithm::SlidingWindow,
                "s 80000000 -20000000 2 1000000 1",
                Counter::of_sliding_window(
                    SlidingWindow::new(Timestamp::from_secs(80), spans),
                    &target(Algorithm::SlidingWindow).tiers[0],
                ),
            ),
            (
                bucket,
                "b 90000000 1.5",
                Counter::of_token_bucket(TokenBucket::new(at, 3 << 31), &target(bucket).tiers[0]),
            ),
        ] {
            let read = answer(&bulk(&["3", "90000000", state]), &target(algorithm), at);
            let counters = std::iter::once(counter).collect();
            assert_eq!(read, Some(Answer::Done(Reply { granted: 3, counters })), "{state}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_no_answer() {
        let at = Timestamp::from_secs(90);
        for texts in [&[][..], &["1"], &["1", "2"], &["1", "2", "x"], &["1", "2", "3", "4"], &["moved", "x"]]
        {
            assert_eq!(answer(&bulk(texts), &target(Algorithm::FixedWindow), at), None, "{texts:?}");
        }
        for state in ["s", "s 1 2", "b 1 2", "s 1 -2 3", "s 1 2 -3"] {
            let read = answer(&bulk(&["1", "2", state]), &target(Algorithm::SlidingWindow), at);
            assert_eq!(read, None, "{state}");
        }
        assert_eq!(answer(&Value::Nil, &target(Algorithm::FixedWindow), at), None);
    }

    #[test]
    fn a_window_that_is_not_open_is_told() {
        let read =
            answer(&bulk(&["moved", "61000000"]), &target(Algorithm::FixedWindow), Timestamp::default());
        assert_eq!(read, Some(Answer::Moved(Timestamp::from_secs(61))));
    }
}
