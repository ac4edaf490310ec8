//! The scripts that run in Redis: their arguments and their replies.

use std::{str::FromStr, sync::LazyLock};

use redis::Value;
use smallvec::SmallVec;

use weir_limit::{Direction, OverLimitPolicy, Period, Refill, Tier, Timestamp};
use weir_store::{
    encoding::{self, DecodeError},
    remote::{Exchange, Reply, Report, Target, TierSet},
};

pub(super) struct Script {
    pub(super) text: &'static str,
    pub(super) sha: String,
}

pub(super) static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("take.lua")));
pub(super) static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("heartbeat.lua")));
pub(super) static BOARD: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("board.lua")));
pub(super) static POOLS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("pools.lua")));
pub(super) static PLACES: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("places.lua")));

/// Far more than any limit admits, and few enough that Lua and Redis add them exactly.
pub(super) const MAX_HITS: u64 = 1 << 48;

/// As many as a double has bits.
pub(super) const MAX_KEYS: usize = 52;

/// Bytes in the argument of [`TAKE`] besides texts: of its head, and of each key, report and run.
const HEAD_BYTES: usize = 5 * 8 + 4 + 16;
const KEY_BYTES: usize = 1 + 5 * 8 + 1;
const REPORT_BYTES: usize = 8 * 7;
const RUN_BYTES: usize = 2 * 8 + 1;

#[derive(Debug, PartialEq)]
pub(super) enum ScriptReply {
    Applied(Reply),
    /// The command was not carried out: its window is not the one that is open at this instant.
    OtherWindow(Timestamp),
}

// === impl Script ===

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, sha: redis::Script::new(text).get_hash().to_owned() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CommandContext {
    /// The present instant. None in production, where the script reads Redis' clock.
    pub(super) now: Option<Timestamp>,
    pub(super) jitter: Period,
}

/// A tier with a fixed window, and an instant in a window that only reports are about.
pub(super) type OtherWindow = (usize, Timestamp);

/// Returns at most as many as a script can have keys for.
pub(super) fn other_windows(
    target: &Target,
    reports: &[Report],
    at: Timestamp,
) -> SmallVec<[OtherWindow; 1]> {
    let mut others: SmallVec<[OtherWindow; 1]> = SmallVec::new();
    if target.over_limit_policy == OverLimitPolicy::Count {
        // their keys may be in other slots
        return others;
    }
    for report in reports {
        for (i, tier) in target.tiers.iter().enumerate() {
            let is_same = |at: Timestamp| tier.is_one_window(at, report.at);
            let is_known = is_same(at) || others.iter().any(|(other, at)| *other == i && is_same(*at));
            if tier.has_windows() && !is_known && target.tiers.len() + others.len() < MAX_KEYS {
                others.push((i, report.at));
            }
        }
    }
    others
}

pub(super) fn argument(
    target: &Target,
    exchange: &Exchange,
    at: Timestamp,
    others: &[OtherWindow],
    context: CommandContext,
) -> Vec<u8> {
    let now = context.now.map_or(-1.0, |now| exact(micros(now)));
    let jitter = exact(context.jitter.as_nanos() / 1_000_000);
    let Exchange { reports, runs, all_or_none, lease, writer } = exchange;
    let bytes = HEAD_BYTES
        + KEY_BYTES * (target.tiers.len() + others.len())
        + REPORT_BYTES * reports.len()
        + RUN_BYTES * runs.len();
    let mut packed = Vec::with_capacity(bytes);
    pack(&mut packed, [now, jitter]);
    pack_text(&mut packed, itoa::Buffer::new().format(*writer));
    let how = u8::from(*all_or_none) + 2 * u8::from(exchange.given_back() > 0);
    packed.extend([few(reports.len()), few(runs.len()), how]);
    // rounded up: hits count for at least as long as they may be used
    let lease =
        lease.map_or([0; 3], |lease| [lease.least, lease.want, lease.hold.as_nanos().div_ceil(1_000)]);
    pack(&mut packed, [count(lease[0]), count(lease[1]), exact(lease[2])]);
    for tier in &target.tiers {
        pack_tier(tier, at, &mut packed);
    }
    for (i, at) in others {
        pack_tier(&target.tiers[*i], *at, &mut packed);
    }
    for report in reports {
        pack_report(report, target, at, others, &mut packed);
    }
    if !reports.is_empty() {
        packed.push(few(target.tiers.len()));
    }
    for run in runs {
        pack(&mut packed, [count(run.hits), run.tries.into()]);
        packed.push(match run.direction {
            Direction::Take | Direction::Look => run.counts_rejected.into(),
            Direction::GiveBack => 2,
        });
    }
    packed
}

fn pack_report(
    report: &Report,
    target: &Target,
    at: Timestamp,
    others: &[OtherWindow],
    packed: &mut Vec<u8>,
) {
    let hits = count(report.change.hits.unsigned_abs());
    let (unused, until) =
        report.unused.map_or((0, Timestamp::default()), |unused| (unused.hits, unused.until));
    let windows = (0..target.tiers.len()).map(|i| (i, at)).chain(others.iter().copied());
    let windows = windows.enumerate().fold(0_u64, |windows, (bit, (i, at))| {
        let tier = &target.tiers[i];
        windows | u64::from(tier.is_one_window(at, report.at)) << bit
    });
    let at = exact(micros(report.at));
    pack(packed, [at, if report.change.hits < 0 { -hits } else { hits }, count(report.change.floor)]);
    // exactly the instant of the grant: an earlier one would release older hits, a later one younger hits of others
    let rejected_at = report.rejected_at.map_or(-1.0, |rejected_at| exact(micros(rejected_at)));
    pack(packed, [count(unused), exact(micros(until)), rejected_at, exact(windows)]);
}

fn few(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn pack_tier(tier: &Tier, at: Timestamp, packed: &mut Vec<u8>) {
    let bucket = tier.bucket();
    packed.push(tier.algorithm.kind().letter() as u8);
    // rounded up: a period must not become shorter
    let micros = |time: u64| exact(time.div_ceil(1_000));
    let (start, end) = tier.window(at);
    let times = [tier.period.as_nanos(), start.as_nanos(), end.as_nanos()].map(micros);
    pack(packed, [tier.requests.into(), times[0], times[1], times[2], bucket.burst.into()]);
    let steps = u8::from(bucket.refill == Refill::Step);
    packed.push(steps + 2 * u8::from(bucket.strict));
}

fn pack<const N: usize>(packed: &mut Vec<u8>, numbers: [f64; N]) {
    for number in numbers {
        packed.extend_from_slice(&number.to_le_bytes());
    }
}

/// `text` contains no zero byte.
fn pack_text(packed: &mut Vec<u8>, text: &str) {
    packed.extend_from_slice(text.as_bytes());
    packed.push(0);
}

/// Bounded, so that no caller can make a counter overflow.
const fn count(hits: u64) -> f64 {
    exact(if hits < MAX_HITS { hits } else { MAX_HITS })
}

/// Exact up to 2^53, in microseconds 285 years.
#[expect(clippy::cast_precision_loss, reason = "Lua would convert it in the same way")]
const fn exact(number: u64) -> f64 {
    number as f64
}

pub(super) fn micros(instant: Timestamp) -> u64 {
    instant.as_nanos() / 1_000
}

/// Envoy's proxy for Redis answers `TIME` itself, with all microseconds since the epoch for those of the second.
pub(super) fn time(value: &Value) -> Option<Timestamp> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(value.clone()).ok()?;
    let micros = micros % 1_000_000;
    Some(encoding::timestamp(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

pub(super) fn reply(value: &Value, target: &Target, at: Timestamp) -> Result<ScriptReply, DecodeError> {
    let text = match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text.as_str()),
        _ => None,
    };
    let (first, rest) = text.and_then(|text| text.split_once('|')).ok_or(DecodeError::UnknownFormat)?;
    if first == "moved" {
        return Ok(ScriptReply::OtherWindow(encoding::timestamp(number(rest, "time")?)));
    }
    let (now, states) = rest.split_once('|').ok_or(DecodeError::InvalidField("states"))?;
    let (own, missing, counts) = match first.split_once('=') {
        Some((tiers, counts)) => {
            let (own, missing) = tiers.split_once(',').ok_or(DecodeError::InvalidField("missing tiers"))?;
            (TierSet(number(own, "own tiers")?), TierSet(number(missing, "missing tiers")?), counts)
        }
        None => (TierSet::default(), TierSet::default(), first),
    };
    let mut counts = counts.split(',');
    let granted = number(counts.next().unwrap_or_default(), "held hits")?;
    let taken = counts.map(|count| number(count, "tries")).collect::<Result<_, _>>()?;
    let mut states = states.split('|');
    let counters = target.tiers.iter().map(|tier| {
        let state = states.next().ok_or(DecodeError::InvalidField("states"))?;
        encoding::decode(tier, at, state).map(|(state, _)| state)
    });
    let counters = counters.collect::<Result<_, _>>()?;
    if states.next().is_some() {
        return Err(DecodeError::TrailingText);
    }
    let now = Some(encoding::timestamp(number(now, "time")?));
    Ok(ScriptReply::Applied(Reply { granted, taken, at: now, counters, own, missing }))
}

fn number<T: FromStr>(text: &str, field: &'static str) -> Result<T, DecodeError> {
    text.parse().map_err(|_| DecodeError::InvalidField(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(texts: &[&str]) -> Value {
        Value::BulkString(texts.join("|").into_bytes())
    }

    fn target(tier: fn(u32, Period) -> Tier) -> Target {
        let tier = tier(5, Period::from_secs(60));
        Target { path: "d_k_v_".into(), tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore }
    }

    #[test]
    fn the_time_is_that_of_redis_and_of_envoys_proxy_for_it() {
        let time_of = |micros: i64| {
            time(&Value::Array(vec![Value::Int(1_795_823_000), Value::Int(micros)])).expect("a time")
        };
        let expected = encoding::timestamp(1_795_823_000_493_604);
        assert_eq!(time_of(493_604), expected);
        assert_eq!(time_of(1_795_823_000_493_604), expected);
        assert_eq!(time(&Value::Nil), None);
    }

    #[test]
    fn a_reply_holds_the_granted_hits_and_a_counter_for_each_tier() {
        let at = Timestamp::from_secs(90);
        for (target, state) in [
            (target(Tier::fixed_window), "3"),
            (target(Tier::sliding_window), "w 7 80000000 -20000000 2 1000000 1"),
        ] {
            let (counter, _) = encoding::decode(&target.tiers[0], at, state).expect("the state is valid");
            let parsed = reply(&bulk(&["1,2=3", "90000000", state]), &target, at);
            let counters = std::iter::once(counter).collect();
            assert_eq!(
                parsed,
                Ok(ScriptReply::Applied(Reply {
                    granted: 3,
                    counters,
                    own: TierSet(1),
                    missing: TierSet(2),
                    at: Some(at),
                    ..Reply::default()
                })),
                "{state}"
            );
        }
    }

    #[test]
    fn malformed_replies_are_errors() {
        let at = Timestamp::from_secs(90);
        for texts in [&[][..], &["1"], &["1", "2"], &["1", "2", "x"], &["1", "2", "3", "4"], &["moved", "x"]]
        {
            assert!(reply(&bulk(texts), &target(Tier::fixed_window), at).is_err(), "{texts:?}");
        }
        for state in ["w", "w 1", "w 1 1 2", "b 1 1 2", "w 1 1 -2 3", "w 1 1 2 -3"] {
            let parsed = reply(&bulk(&["1", "2", state]), &target(Tier::sliding_window), at);
            assert!(parsed.is_err(), "{state}");
        }
        assert!(reply(&Value::Nil, &target(Tier::fixed_window), at).is_err());
    }

    #[test]
    fn a_window_that_is_not_open_is_reported() {
        let parsed = reply(&bulk(&["moved", "61000000"]), &target(Tier::fixed_window), Timestamp::default());
        assert_eq!(parsed, Ok(ScriptReply::OtherWindow(Timestamp::from_secs(61))));
    }
}
