//! The scripts that run in Redis: what they are told, and what they answer.

use std::sync::LazyLock;

use redis::Value;

use crate::{
    limit::{
        Algorithm, Hits, Period, Refill, Tier, Timestamp,
        algorithm::{CounterState, FixedWindow, SlidingWindow, Span, TokenBucket},
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

/// Bytes of [`TAKE`]'s argument for the operation, and for each tier.
const HEAD: usize = 1 + 5 * 8;
const TIER: usize = 1 + 5 * 8 + 1;

/// What the script made of a command.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// It was carried out.
    Done(Reply),
    /// It was not: the window that it is about is not the one that is open at this instant.
    Moved(Timestamp),
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

/// The argument of [`TAKE`] for `op` on `target` in the window of `at`. `now` is none in production, where the clock is
/// Redis'.
pub(super) fn argument(
    target: &Target,
    op: Op,
    at: Timestamp,
    now: Option<Timestamp>,
    jitter: Period,
) -> Vec<u8> {
    let (name, hits, want, hold) = match op {
        // no counter runs over for what one caller makes up
        Op::Add { hits } if hits < 0 => (b'a', -exact(hits.unsigned_abs().min(MANY)), 0, 0),
        Op::Add { hits } => (b'a', exact(hits.unsigned_abs().min(MANY)), 0, 0),
        // of an instant that is too early older hits would be given back, of one that is too late others' younger ones
        Op::Return { hits, until } => (b'r', exact(hits.min(MANY)), 0, micros(until)),
        Op::Take { hits } => (b't', exact(hits.min(MANY)), 0, 0),
        Op::Grant { least, want, hold } => {
            // a little longer than asked for, never shorter
            (b'g', exact(least.clamp(1, MANY)), want.min(MANY), hold.as_nanos().div_ceil(1_000))
        }
    };
    let now = now.map_or(-1.0, |now| exact(micros(now)));
    let jitter = exact(jitter.as_nanos() / 1_000_000);
    let mut packed = Vec::with_capacity(HEAD + TIER * target.tiers.len());
    packed.push(name);
    pack(&mut packed, [now, hits, exact(want), exact(hold), jitter]);
    for tier in &target.tiers {
        describe(tier, at, &mut packed);
    }
    packed
}

/// The seven parts of a tier.
fn describe(tier: &Tier, at: Timestamp, packed: &mut Vec<u8>) {
    let bucket = tier.bucket();
    packed.push(match tier.algorithm {
        Algorithm::FixedWindow => b'f',
        Algorithm::SlidingWindow => b's',
        Algorithm::TokenBucket(_) => b'b',
    });
    // a little longer than it is, never shorter
    let micros = |time: u64| exact(time.div_ceil(1_000));
    let (start, end) = (name::window_start(tier, at), at.window_end(tier.period));
    let times = [tier.period.as_nanos(), start.as_nanos(), end.as_nanos()].map(micros);
    pack(packed, [tier.requests.into(), times[0], times[1], times[2], bucket.burst.into()]);
    packed.push(u8::from(bucket.refill == Refill::Step) + 2 * u8::from(bucket.strict));
}

/// Adds `numbers` as Lua has them.
fn pack(packed: &mut Vec<u8>, metrics: [f64; 5]) {
    for number in metrics {
        packed.extend_from_slice(&number.to_le_bytes());
    }
}

/// A number of Lua's. Exact, as long as it is one that makes sense: microseconds of 285 years.
#[expect(clippy::cast_precision_loss, reason = "it is what Lua would make of it")]
const fn exact(number: u64) -> f64 {
    number as f64
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
    let text = match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::SimpleString(text) => text,
        _ => return None,
    };
    let (first, rest) = text.split_once('|')?;
    if first == "moved" {
        return Some(Answer::Moved(from_micros(rest.parse().ok()?)));
    }
    let (_now, states) = rest.split_once('|')?;
    let mut states = states.split('|');
    let counters = target.tiers.iter().map(|tier| counter(tier, at, states.next()?));
    let counters = counters.collect::<Option<_>>()?;
    states.next().is_none().then_some(Answer::Done(Reply { granted: first.parse().ok()?, counters }))
}

/// The counter of a state.
fn counter(tier: &Tier, at: Timestamp, state: &str) -> Option<CounterState> {
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
            CounterState::from_sliding_window(SlidingWindow::new(from_micros(opened), spans), tier)
        }
        Algorithm::TokenBucket(_) => {
            words.next().filter(|kind| *kind == "b")?;
            let as_of = from_micros(words.next()?.parse().ok()?);
            let taken: f64 = words.next()?.parse().ok().filter(|taken: &f64| *taken >= 0.0)?;
            CounterState::from_token_bucket(TokenBucket::new(as_of, units(taken)), tier)
        }
    })
}

/// The counter of the fixed window that `at` lies in.
pub(super) fn window(tier: &Tier, at: Timestamp, used: u64) -> CounterState {
    CounterState::FixedWindow(FixedWindow::new(at.window_end(tier.period), Hits(used)))
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
    use smallvec::smallvec;

    use super::*;
    use crate::limit::{Bucket, OverLimitPolicy};

    fn bulk(texts: &[&str]) -> Value {
        Value::BulkString(texts.join("|").into_bytes())
    }

    fn target(algorithm: Algorithm) -> Target {
        let tier = Tier { requests: 5, period: Period::from_secs(60), algorithm };
        Target { path: "d_k_v_".into(), tiers: smallvec![tier], over_limit_policy: OverLimitPolicy::Ignore }
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
                CounterState::FixedWindow(FixedWindow::new(Timestamp::from_secs(120), Hits(3))),
            ),
            (
                Algorithm::SlidingWindow,
                "s 80000000 -20000000 2 1000000 1",
                CounterState::from_sliding_window(
                    SlidingWindow::new(Timestamp::from_secs(80), spans),
                    &target(Algorithm::SlidingWindow).tiers[0],
                ),
            ),
            (
                bucket,
                "b 90000000 1.5",
                CounterState::from_token_bucket(TokenBucket::new(at, 3 << 31), &target(bucket).tiers[0]),
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
