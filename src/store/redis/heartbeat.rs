//! The arguments and the reply of the script that counts the instances.

use redis::Value;

use crate::{
    limit::{
        Period, Timestamp,
        demand::{DemandPart, FollowedWindow},
        part::Place,
    },
    store::remote::{Epoch, FirstEpoch, Heartbeat, KeyDemand, KeyPart, Members},
};

/// Returns the arguments about `heartbeat`, after that of the time.
pub(super) fn arguments(heartbeat: &Heartbeat<'_>) -> impl Iterator<Item = String> {
    let ttl = heartbeat.ttl.as_nanos().div_ceil(1_000_000).to_string();
    let first = heartbeat.first_epoch.map(|first| (first.as_nanos() / 1_000_000_000).to_string());
    let fixed = [heartbeat.instance.to_owned(), ttl, first.unwrap_or_default()];
    fixed.into_iter().chain(heartbeat.demands.iter().map(demand))
}

/// Interprets the reply of [`HEARTBEAT`](super::script::HEARTBEAT); none if it is not one.
pub(super) fn members(value: &Value) -> Option<Members> {
    let Value::Array(values) = value else { return None };
    let [instances, micros, rest @ ..] = &values[..] else { return None };
    let (instances, micros) = (integer(instances)?, integer(micros)?);
    let (first, parts, epochs) = match rest {
        [] => (0, &[][..], &[][..]),
        [first, Value::Array(parts), epochs @ ..] => (integer(first)?, &parts[..], epochs),
        _ => return None,
    };
    let epochs: Vec<i64> = epochs.iter().map(integer).collect::<Option<_>>()?;
    let (epochs, rest) = epochs.as_chunks::<3>();
    let epochs = epochs.iter().map(|[second, members, rank]| {
        let from = Timestamp::from_secs(u64::try_from(*second).ok()?);
        // a rank of -1 is none
        let place =
            u32::try_from(*rank).ok().and_then(|rank| Place::new(u32::try_from(*members).ok()?, rank));
        Some(Epoch { from, place })
    });
    Some(Members {
        instances: usize::try_from(instances).ok()?,
        now: Some(Timestamp::from_nanos(u64::try_from(micros).ok()?.checked_mul(1_000)?)),
        epochs: epochs.collect::<Option<_>>().filter(|_| rest.is_empty())?,
        first: (first != 0).then(|| FirstEpoch {
            from: Timestamp::from_secs(first.unsigned_abs()),
            follows_others: first < 0,
        }),
        parts: parts.iter().map(part).collect::<Option<_>>()?,
    })
}

fn integer(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value { Some(*number) } else { None }
}

/// Interprets a part in the reply of [`HEARTBEAT`](super::script::HEARTBEAT).
fn part(value: &Value) -> Option<KeyPart> {
    let Value::Array(values) = value else { return None };
    let [Value::BulkString(key), limit, period, hits, version] = &values[..] else { return None };
    let few = |value: &Value| u32::try_from(integer(value)?).ok();
    let period =
        Some(Period::from_millis(few(period)?.into())).filter(|period| *period > Period::default())?;
    Some(KeyPart {
        key: u64::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok()?,
        window: FollowedWindow { limit: few(limit)?, period },
        part: DemandPart { hits: few(hits)?, version: u64::try_from(integer(version)?).ok()? },
    })
}

/// Returns the argument about a limit.
fn demand(KeyDemand { key, window, demand }: &KeyDemand) -> String {
    let millis = window.period.as_nanos() / 1_000_000;
    format!("{key:016x} {} {millis} {} {}", window.limit, demand.hits, demand.acknowledged)
}
