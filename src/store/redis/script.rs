//! The scripts that run in Redis: their arguments and their replies.

use std::sync::LazyLock;

use redis::Value;

use super::name;
use crate::{
    limit::{Algorithm, Period, Refill, Tier, Timestamp, algorithm::CountChange},
    store::{
        encoding::{self, DecodeError},
        remote::{Op, Reply, Report, Target},
    },
};

/// A script, and the hash by which Redis knows it.
pub(super) struct Script {
    /// The Lua text.
    pub(super) text: &'static str,
    sha: LazyLock<String>,
}

/// Adds, takes, grants and returns hits.
pub(super) static TAKE: Script = Script::new(include_str!("take.lua"), take_sha);
/// Counts the instances.
pub(super) static HEARTBEAT: Script = Script::new(include_str!("heartbeat.lua"), heartbeat_sha);
/// All scripts.
pub(super) static ALL: [&Script; 2] = [&TAKE, &HEARTBEAT];

/// The most hits in one command: far more than any limit admits, and few enough that Lua and Redis add them exactly.
pub(super) const MAX_HITS: u64 = 1 << 48;

/// The number of bytes in the argument of [`TAKE`] for the operation, and for each tier.
const OP_BYTES: usize = 1 + 5 * 8;
const TIER_BYTES: usize = 1 + 5 * 8 + 1;

/// The reply of [`TAKE`].
#[derive(Debug, PartialEq)]
pub(super) enum ScriptReply {
    /// The command was carried out.
    Applied(Reply),
    /// The command was not carried out: its window is not the one that is open at this instant.
    OtherWindow(Timestamp),
}

// === impl Script ===

impl Script {
    const fn new(text: &'static str, sha: fn() -> String) -> Self {
        Self { text, sha: LazyLock::new(sha) }
    }

    /// Returns its SHA-1, the argument of `EVALSHA`.
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

/// Encodes the argument of [`TAKE`] for `op` on `target` in the window of `at`. `now` is none in production, where the script
/// reads Redis' clock.
pub(super) fn argument(
    target: &Target,
    op: &Op,
    at: Timestamp,
    now: Option<Timestamp>,
    jitter: Period,
) -> Vec<u8> {
    let (letter, hits, want, hold) = match *op {
        // exactly the instant of the grant: an earlier one would release older hits, a later one younger hits of others
        Op::Add {
            report:
                Report {
                    change: CountChange { hits: 0, floor: 0 },
                    unused: Some(unused),
                    rejected_at: None,
                    replaces: None,
                    ..
                },
        } => (b'r', exact(unused.hits.min(MAX_HITS)), 0, micros(unused.until)),
        // bounded, so that no caller can make a counter overflow
        Op::Add { report: Report { change, unused: None, rejected_at: None, replaces: None, .. } }
            if change == CountChange::of(change.hits) =>
        {
            let hits = exact(change.hits.unsigned_abs().min(MAX_HITS));
            (b'a', if change.hits < 0 { -hits } else { hits }, 0, 0)
        }
        Op::Add { .. } | Op::Grant { report: Some(_), .. } => (b'x', 0.0, 0, 0),
        Op::Take { hits } => (b't', exact(hits.min(MAX_HITS)), 0, 0),
        Op::Grant { report: None, least, want, hold } => {
            // rounded up: hits count for at least as long as they may be used
            (b'g', exact(least.clamp(1, MAX_HITS)), want.min(MAX_HITS), hold.as_nanos().div_ceil(1_000))
        }
    };
    let now = now.map_or(-1.0, |now| exact(micros(now)));
    let jitter = exact(jitter.as_nanos() / 1_000_000);
    let mut packed = Vec::with_capacity(OP_BYTES + TIER_BYTES * target.tiers.len());
    packed.push(letter);
    pack(&mut packed, [now, hits, exact(want), exact(hold), jitter]);
    for tier in &target.tiers {
        pack_tier(tier, at, &mut packed);
    }
    packed
}

/// Appends the seven fields of a tier.
fn pack_tier(tier: &Tier, at: Timestamp, packed: &mut Vec<u8>) {
    let bucket = tier.bucket();
    packed.push(match tier.algorithm {
        Algorithm::FixedWindow => b'f',
        Algorithm::SlidingWindow => b's',
        Algorithm::TokenBucket(_) => b'b',
    });
    // rounded up: a period must not become shorter
    let micros = |time: u64| exact(time.div_ceil(1_000));
    let (start, end) = (name::window_start(tier, at), at.window_end(tier.period));
    let times = [tier.period.as_nanos(), start.as_nanos(), end.as_nanos()].map(micros);
    pack(packed, [tier.requests.into(), times[0], times[1], times[2], bucket.burst.into()]);
    packed.push(u8::from(bucket.refill == Refill::Step) + 2 * u8::from(bucket.strict));
}

/// Appends `numbers` as doubles, the numbers of Lua.
fn pack(packed: &mut Vec<u8>, numbers: [f64; 5]) {
    for number in numbers {
        packed.extend_from_slice(&number.to_le_bytes());
    }
}

/// Converts a number to a double. Exact up to 2^53, in microseconds 285 years.
#[expect(clippy::cast_precision_loss, reason = "Lua would convert it in the same way")]
const fn exact(number: u64) -> f64 {
    number as f64
}

/// Returns whole microseconds since the epoch, the unit of Redis' clock.
pub(super) fn micros(instant: Timestamp) -> u64 {
    instant.as_nanos() / 1_000
}

/// Parses the reply to `TIME`.
pub(super) fn time(value: &Value) -> Option<Timestamp> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(value.clone()).ok()?;
    Some(encoding::timestamp(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

/// Parses the reply of [`TAKE`] about `target` in the window of `at`.
pub(super) fn reply(value: &Value, target: &Target, at: Timestamp) -> Result<ScriptReply, DecodeError> {
    let text = match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text.as_str()),
        _ => None,
    };
    let (first, rest) = text.and_then(|text| text.split_once('|')).ok_or(DecodeError::UnknownFormat)?;
    let number = |text: &str, field| text.parse().map_err(|_| DecodeError::InvalidField(field));
    if first == "moved" {
        return Ok(ScriptReply::OtherWindow(encoding::timestamp(number(rest, "time")?)));
    }
    let (_now, states) = rest.split_once('|').ok_or(DecodeError::InvalidField("states"))?;
    let mut states = states.split('|');
    let counters = target.tiers.iter().map(|tier| {
        let state = states.next().ok_or(DecodeError::InvalidField("states"))?;
        encoding::decode(tier, at, state)
    });
    let counters = counters.collect::<Result<_, _>>()?;
    if states.next().is_some() {
        return Err(DecodeError::TrailingText);
    }
    Ok(ScriptReply::Applied(Reply { granted: number(first, "granted hits")?, counters, ..Reply::default() }))
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::limit::OverLimitPolicy;

    fn bulk(texts: &[&str]) -> Value {
        Value::BulkString(texts.join("|").into_bytes())
    }

    fn target(algorithm: Algorithm) -> Target {
        let tier = Tier { requests: 5, period: Period::from_secs(60), algorithm };
        Target { path: "d_k_v_".into(), tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore }
    }

    #[test]
    fn a_reply_holds_the_granted_hits_and_a_counter_for_each_tier() {
        let at = Timestamp::from_secs(90);
        for (algorithm, state) in
            [(Algorithm::FixedWindow, "3"), (Algorithm::SlidingWindow, "s 80000000 -20000000 2 1000000 1")]
        {
            let target = target(algorithm);
            let counter = encoding::decode(&target.tiers[0], at, state).expect("the state is valid");
            let parsed = reply(&bulk(&["3", "90000000", state]), &target, at);
            let counters = std::iter::once(counter).collect();
            assert_eq!(
                parsed,
                Ok(ScriptReply::Applied(Reply { granted: 3, counters, ..Reply::default() })),
                "{state}"
            );
        }
    }

    #[test]
    fn malformed_replies_are_errors() {
        let at = Timestamp::from_secs(90);
        for texts in [&[][..], &["1"], &["1", "2"], &["1", "2", "x"], &["1", "2", "3", "4"], &["moved", "x"]]
        {
            assert!(reply(&bulk(texts), &target(Algorithm::FixedWindow), at).is_err(), "{texts:?}");
        }
        for state in ["s", "s 1 2", "b 1 2", "s 1 -2 3", "s 1 2 -3"] {
            let parsed = reply(&bulk(&["1", "2", state]), &target(Algorithm::SlidingWindow), at);
            assert!(parsed.is_err(), "{state}");
        }
        assert!(reply(&Value::Nil, &target(Algorithm::FixedWindow), at).is_err());
    }

    #[test]
    fn a_window_that_is_not_open_is_reported() {
        let parsed =
            reply(&bulk(&["moved", "61000000"]), &target(Algorithm::FixedWindow), Timestamp::default());
        assert_eq!(parsed, Ok(ScriptReply::OtherWindow(Timestamp::from_secs(61))));
    }
}
