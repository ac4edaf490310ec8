//! Scripts in Lua 5.4, as Dragonfly runs them: the same replies as in Redis, which has Lua 5.1.

use std::sync::Arc;

use weir_limit::{Algorithm, OverLimitPolicy, Period, Tier};
use weir_store::{
    clock::Clock as _,
    pool_command::{MemberNews, PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReport},
    remote::{Heartbeat, Remote as _},
};

use crate::{
    algorithms::RedisWithClock,
    support::{Lua54, Op, address, connected, now, send, settings, target, tier},
};

/// The product of the longest cycle and the longest memory is above the integers of Lua 5.4.
#[test]
fn members_of_the_longest_pool_are_kept() {
    for store in [RedisWithClock::new(), RedisWithClock::in_lua_5_4()] {
        let period = Period::from_secs(365 * 86_400);
        let target = store.target(&[Tier::fixed_window(9, period)]);
        let cycle = store.clock.now().as_nanos() / period.as_nanos();
        for _ in 0..2 {
            let member = PoolMember { name: "A".into(), is_named: false };
            let reports = vec![PoolReport { member, news: MemberNews { asked: 1, granted: 1, late: 0 } }];
            let op = PoolOp::Exchange(reports);
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
    let remote = connected(settings(address(lua.port()))).await;
    let at = now(&remote).await;
    let tiers = vec![tier(5, 60, Algorithm::SlidingWindow), tier(9, 3_600, Algorithm::FixedWindow)];
    let counted = target("d_k_", OverLimitPolicy::Ignore, tiers);
    let taken = async || send(&remote, &counted, at, Op::Take { hits: 1 }).await.expect("a reply").granted;
    assert_eq!((taken().await, taken().await), (1, 1));
    let members =
        remote.heartbeat(Heartbeat { instance: "one", ttl: Period::from_secs(60) }).await.expect("a reply");
    assert!(members.instances == 1 && members.now.is_some_and(|now| now >= at), "{members:?}");
    let member = PoolMember { name: "A".into(), is_named: false };
    let report = PoolReport { member, news: MemberNews { asked: 1, granted: 1, late: 0 } };
    let op = PoolOp::Exchange(vec![report]);
    let pool = target("d|pool|client", OverLimitPolicy::Ignore, vec![tier(9, 3_600, Algorithm::FixedWindow)]);
    let cycle = at.as_nanos() / Period::from_secs(3_600).as_nanos();
    let command = PoolCommand { target: pool, cycle, places: 9, forget_after: 2, op };
    remote.call_pool(command).await.expect("a reply");
}
