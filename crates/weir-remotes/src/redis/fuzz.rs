//! Fuzz targets: the replies of the script, and the slots of a cluster.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use redis::Value;
use tokio::io::{AsyncRead as _, ReadBuf};

use super::{
    Address,
    reply_guard::ReplyGuard,
    script::{self, ScriptReply},
    slot_map::{SLOTS, SlotMap},
};
use weir_limit::{
    Bucket, Direction, Hits, OverLimitPolicy, Period, Refill, Tier, Timestamp, decide, decision_from_store,
};
use weir_store::remote::Target;

const NOW: Timestamp = Timestamp::from_secs(1_234_567_890);

fn targets() -> [Target; 5] {
    let minute = Period::from_secs(60);
    let bucket = |refill, strict| Tier::token_bucket(5, minute, Bucket { burst: 9, refill, strict });
    let target = |tiers: &[Tier]| Target {
        path: "d_k_v_".into(),
        tiers: tiers.to_vec().into(),
        over_limit_policy: OverLimitPolicy::Ignore,
    };
    [
        target(&[Tier::fixed_window(5, minute)]),
        target(&[Tier::sliding_window(5, minute)]),
        target(&[bucket(Refill::Continuous, false)]),
        target(&[bucket(Refill::Step, true)]),
        target(&[
            Tier::fixed_window(5, Period::from_secs(1)),
            Tier::sliding_window(5, minute),
            Tier { period: Period::from_secs(86_400), ..bucket(Refill::Continuous, true) },
        ]),
    ]
}

pub fn reply(input: &[u8]) {
    let Some((first, text)) = input.split_first() else { return };
    let targets = targets();
    let target = &targets[usize::from(*first) % targets.len()];
    let value = Value::BulkString(text.to_vec());
    let Ok(ScriptReply::Applied(reply)) = script::reply(&value, target, NOW) else { return };
    assert_eq!(reply.counters.len(), target.tiers.len());
    for hits in [0, 1, 5, u64::MAX].map(Hits) {
        for over in [false, true] {
            let policy = OverLimitPolicy::Ignore;
            let _ = decision_from_store(&target.tiers, &reply.counters, policy, over, hits, NOW);
        }
        for policy in [OverLimitPolicy::Ignore, OverLimitPolicy::Count] {
            for direction in [Direction::Take, Direction::GiveBack] {
                let mut counters = reply.counters.clone();
                let _ = decide(&target.tiers, &mut counters, policy, direction, hits, NOW);
                let _ = decide(&target.tiers, &mut counters, policy, direction, hits, NOW);
            }
        }
    }
}

pub fn slots(input: &[u8]) {
    if !passes(input) {
        return;
    }
    let Ok(value) = redis::parse_redis_value(input) else { return };
    let source = Address::tcp("source", 6379);
    let Ok(map) = SlotMap::parse(&value, &source) else { return };
    for slot in 0..SLOTS {
        assert!(map.holder(slot).is_none_or(|holder| map.masters.contains(holder)));
    }
    let moved = map.redirected(0, source.clone()).expect("the first redirect");
    assert_eq!(moved.holder(0), Some(&source));
    assert!((1..SLOTS).all(|slot| moved.holder(slot) == map.holder(slot)));
}

fn passes(mut reply: &[u8]) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let mut guard = ReplyGuard::new(&mut reply, Arc::default());
    loop {
        let mut part = [0; 7];
        let mut part = ReadBuf::new(&mut part);
        match Pin::new(&mut guard).poll_read(&mut context, &mut part) {
            Poll::Ready(Ok(())) if part.filled().is_empty() => return true,
            Poll::Ready(Ok(())) => {}
            _ => return false,
        }
    }
}
