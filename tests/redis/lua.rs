//! Scripts in Lua 5.4, as Dragonfly runs them: the same replies as in Redis, which has Lua 5.1.

use std::{cell::Cell, sync::Arc};

use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use weir::{
    clock::Clock as _,
    limit::{
        Algorithm, OverLimitPolicy, Period, Tier,
        request_bucket::{StepLimit, StepRequest},
    },
    store::{
        pool_command::{PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReport},
        remote::{Heartbeat, Remote as _},
    },
};

use crate::{
    algorithms::RedisWithClock,
    support::{Lua54, Op, connected, now, send, settings, target, tier},
};

/// Small numbers, and the largest that the script takes: products of two are above the integers of Lua 5.4.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![2 => 1..30_u64, 1 => select(&[1_u64 << 33, (1 << 52) - 1][..])]
}

#[test]
fn buckets_with_steps_have_the_same_replies_as_in_redis() {
    let stores = [RedisWithClock::new(), RedisWithClock::in_lua_5_4()];
    let limit = (number(), number(), number());
    let take = prop_oneof![2 => 0..9_u64, 1 => number()];
    // with times of callers, buckets live for a week of Redis' own clock, which the test does not set
    let flags = (any::<bool>(), any::<bool>(), 0..5_000_u64);
    let step = (prop_oneof![3 => 0..40_u64, 1 => 0..5_000_000_u64], take, flags);
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases: 60, ..Config::default() });
    let cases = Cell::new(0);
    let checked = runner.run(&(limit, vec(step, 1..25)), |((max, refill, period_ms), steps)| {
        let name = format!("d|bucket{}", cases.replace(cases.get() + 1));
        for (later, take, (strict, session, before)) in steps {
            let replies = stores.each_ref().map(|store| {
                store.clock.set(store.clock.now().after(Period::from_millis(later)));
                let now = store.clock.now().as_nanos() / 1_000_000;
                let limit = StepLimit { max, refill, period_ms };
                let at = Some(now - before);
                let request = StepRequest { limit, take, at, strict, session };
                store.runtime.block_on(store.remote.take_steps(&name, &request)).expect("a reply")
            });
            prop_assert!(replies[0].is_some());
            prop_assert_eq!(&replies[0], &replies[1]);
        }
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
}

/// The product of the longest cycle and the longest memory is above the integers of Lua 5.4.
#[test]
fn members_of_the_longest_pool_are_kept() {
    for store in [RedisWithClock::new(), RedisWithClock::in_lua_5_4()] {
        let period = Period::from_secs(365 * 86_400);
        let target = store.target(&[Tier { requests: 9, period, algorithm: Algorithm::FixedWindow }]);
        let cycle = store.clock.now().as_nanos() / period.as_nanos();
        for _ in 0..2 {
            let member = PoolMember { name: "A".into(), is_named: false };
            let reports = vec![PoolReport { member, asked: 1, granted: 1 }];
            let op = PoolOp::Exchange { reports, late: Vec::new(), with_demands: true };
            let target = Arc::clone(&target);
            let command = PoolCommand { target, cycle, places: 9, forget_after: u32::MAX, op };
            let PoolOutcome::Table(table) = store.call_pool(command).expect("a reply").outcome else {
                panic!("another cycle")
            };
            assert_eq!(table.members.len(), 1);
        }
    }
}

/// The other tests set the clock; in production the scripts read that of the server.
#[tokio::test]
async fn every_script_runs_on_the_clock_of_the_server() {
    let lua = Lua54::start();
    let remote = connected(settings(lua.address())).await;
    let at = now(&remote).await;
    let tiers = vec![tier(5, 60, Algorithm::SlidingWindow), tier(9, 3_600, Algorithm::FixedWindow)];
    let counted = target("d_k_", OverLimitPolicy::Ignore, tiers);
    let taken = async || send(&remote, &counted, at, Op::Take { hits: 1 }).await.expect("a reply").granted;
    assert_eq!((taken().await, taken().await), (1, 1));
    let members = remote.heartbeat(Heartbeat::new("one", Period::from_secs(60))).await.expect("a reply");
    assert!(members.instances == 1 && members.now.is_some_and(|now| now >= at), "{members:?}");
    let member = PoolMember { name: "A".into(), is_named: false };
    let report = PoolReport { member, asked: 1, granted: 1 };
    let op = PoolOp::Exchange { reports: vec![report], late: Vec::new(), with_demands: true };
    let pool = target("d|pool|client", OverLimitPolicy::Ignore, vec![tier(9, 3_600, Algorithm::FixedWindow)]);
    let cycle = at.as_nanos() / Period::from_secs(3_600).as_nanos();
    let command = PoolCommand { target: pool, cycle, places: 9, forget_after: 2, op };
    remote.call_pool(command).await.expect("a reply");
    let limit = StepLimit { max: 5, refill: 1, period_ms: 60_000 };
    let request = StepRequest { limit, take: 1, at: None, strict: false, session: false };
    let reply =
        remote.take_steps("d|bucket", &request).await.expect("a reply").expect("the numbers are small");
    assert_eq!(reply.tokens, 5);
    assert!(remote.delete_steps("d|bucket").await.expect("a reply"));
}
