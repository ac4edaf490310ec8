//! Pools of fair shares in Redis: the script compared with the simulated store, the life of its keys, and instances
//! that share one.

use std::{sync::Arc, time::Duration};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use weir_coordinate::simulated::SimulatedPools;
use weir_limit::{OverLimitPolicy, Period, Tier, Timestamp, share::Terms};
use weir_remotes::redis::RedisRemote;
use weir_store::{
    clock::Clock as _,
    pool_command::{MemberNews, PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReport},
    remote::{Remote as _, Target},
};

use crate::{
    algorithms::RedisWithClock,
    support::{Server, address, connected, settings, target},
};

const CYCLE: u64 = 2_000;

/// A command, `later` milliseconds after the last one, about a cycle that is `ahead` of the present one.
#[derive(Clone, Debug)]
struct Step {
    later: u64,
    ahead: i64,
    op: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Lease { member: usize, terms: [u32; 4], tries: Vec<u32>, pace: u32 },
    Exchange(Vec<(usize, (u32, u32), i64)>),
}

/// The name of a member. Some have characters that are special elsewhere; the first three are named in the rule.
const NAMES: [&str; 9] = ["a", "b", "other", "", "d|e", "=g", "G", "x y", "\u{fc}{}"];

fn member(i: usize) -> PoolMember {
    PoolMember { name: NAMES[i].into(), is_named: i < 3 }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let members = || 0..NAMES.len();
    let numbers = || prop_oneof![8 => 0..60_u32, 1 => Just(u32::MAX)];
    let late = || prop_oneof![3 => Just(0_u32), 1 => numbers()];
    let lease = (members(), (numbers(), 0..30_u32, 0..60_u32, numbers()), vec(1..9_u32, 0..5), 0..40_u32)
        .prop_map(|(member, terms, tries, pace)| Action::Lease { member, terms: terms.into(), tries, pace });
    let exchange = vec((members(), (late(), numbers()), -9..9_i64), 0..5).prop_map(Action::Exchange);
    let op = prop_oneof![5 => lease, 3 => exchange];
    let later = prop_oneof![6 => 0..150_u64, 2 => 1_700..2_300_u64, 1 => 0..12_000_u64];
    let step = (later, prop_oneof![12 => Just(0), 3 => Just(-1), 1 => -3..3_i64], op)
        .prop_map(|(later, ahead, op)| Step { later, ahead, op });
    vec(step, 1..60)
}

fn op(action: &Action) -> PoolOp {
    match action.clone() {
        Action::Lease { member: of, terms: [capacity, own, limit, free], tries, pace } => PoolOp::Lease {
            member: member(of),
            terms: Terms { capacity, own, limit, free },
            tries: tries.into(),
            ahead: pace,
            instances: 1 + pace % 3,
        },
        Action::Exchange(reports) => {
            let report = |(of, (late, asked), granted)| PoolReport {
                member: member(of),
                news: MemberNews { late, asked, granted },
            };
            PoolOp::Exchange(reports.into_iter().map(report).collect())
        }
    }
}

fn sorted(mut outcome: PoolOutcome) -> PoolOutcome {
    if let PoolOutcome::Table(table) = &mut outcome {
        table.members.sort_by(|a, b| a.name.cmp(&b.name));
    }
    outcome
}

#[test]
fn the_script_does_what_the_simulated_store_does() {
    compare_with_the_simulated_store(&RedisWithClock::new(), 150);
}

#[test]
fn the_script_does_in_lua_5_4_what_the_simulated_store_does() {
    compare_with_the_simulated_store(&RedisWithClock::in_lua_5_4(), 50);
}

fn compare_with_the_simulated_store(redis: &RedisWithClock, cases: u32) {
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases, ..Config::default() });
    let strategy = (0..CYCLE, steps(), 2..6_u32, prop_oneof![9 => 1..4_u32, 1 => Just(u32::MAX)]);
    let checked = runner.run(&strategy, |(begun, steps, places, forget_after)| {
        let period = Period::from_millis(CYCLE);
        // whatever cases were before it: a case that fails does so again when it is made smaller
        redis.clock.set(redis.clock.now().window_end(period).after(Period::from_millis(begun)));
        let target = redis.target(&[Tier::fixed_window(9, period)]);
        let mut model = SimulatedPools::default();
        for Step { later, ahead, op: action } in steps {
            redis.clock.set(redis.clock.now().after(Period::from_millis(later)));
            let now = redis.clock.now();
            let cycle = (now.as_nanos() / period.as_nanos()).saturating_add_signed(ahead);
            let command =
                PoolCommand { target: Arc::clone(&target), cycle, places, forget_after, op: op(&action) };
            let expected = model.execute(command.clone(), now);
            let reply = redis.call_pool(command).expect("it replies");
            prop_assert_eq!(reply.now, now);
            prop_assert_eq!(sorted(reply.outcome), sorted(expected), "{:?}", action);
        }
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
}

/// Sends `op` about the present cycle until it is still that when the command arrives.
async fn send(remote: &RedisRemote, target: &Arc<Target>, op: PoolOp) -> PoolOutcome {
    let period = target.tiers[0].period.as_nanos();
    let mut cycle = crate::support::now(remote).await.as_nanos() / period;
    loop {
        let command =
            PoolCommand { target: Arc::clone(target), cycle, places: 9, forget_after: 2, op: op.clone() };
        match remote.call_pool(command).await.expect("it replies").outcome {
            PoolOutcome::OtherCycle(open) => cycle = open,
            outcome => return outcome,
        }
    }
}

fn exchange(members: &[&str]) -> PoolOp {
    let report = |name: &&str| PoolReport {
        member: PoolMember { name: (*name).into(), is_named: false },
        news: MemberNews { late: 0, asked: 1, granted: 1 },
    };
    PoolOp::Exchange(members.iter().map(report).collect())
}

#[tokio::test]
async fn all_keys_are_in_one_slot_and_none_is_left_when_the_members_are_forgotten() {
    let server = Server::start();
    let mut settings = settings(address(server.port()));
    settings.keys.jitter_seconds = 1;
    let remote = connected(settings).await;
    let period = Period::from_millis(CYCLE);
    let tier = Tier::fixed_window(9, period);
    let pool = target("d|service=kyc|client", OverLimitPolicy::Ignore, vec![tier]);
    let begun = std::time::Instant::now();
    send(&remote, &pool, exchange(&["A"])).await;
    let keys: Vec<String> = server.send(&["KEYS", "*"]);
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(keys.iter().all(|key| key.starts_with("{d|service=kyc|client}p2s")), "{keys:?}");
    for key in &keys {
        let left: i64 = server.send(&["PTTL", key]);
        // the cycle is read in the next one; members are forgotten after two cycles without demand
        let most = if key.contains('_') { 2 * CYCLE } else { 3 * CYCLE }.cast_signed();
        assert!((1..=most).contains(&left), "{key}: {left} ms");
    }
    crate::support::until("all keys have expired", async || {
        server.send::<Vec<String>>(&["KEYS", "*"]).is_empty()
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_millis(CYCLE));
}

/// Tables of a cycle have the demand of the one before, also what was reported late.
#[test]
fn a_late_report_is_demand_of_the_cycle_before() {
    let redis = RedisWithClock::new();
    let period = Period::from_secs(10);
    let pool = redis.target(&[Tier::fixed_window(9, period)]);
    let cycle = redis.clock.now().as_nanos() / period.as_nanos() + 1;
    let start = Timestamp::from_nanos(cycle * period.as_nanos());
    let call = |at: u64, cycle, op| {
        redis.clock.set(start.after(Period::from_millis(at)));
        let command = PoolCommand { target: Arc::clone(&pool), cycle, places: 9, forget_after: 2, op };
        redis.call_pool(command).expect("it replies").outcome
    };
    let demand = |outcome: PoolOutcome| match outcome {
        PoolOutcome::Table(table) => table.members.iter().map(|member| member.demand).sum::<u32>(),
        outcome => panic!("{outcome:?}"),
    };
    assert_eq!(demand(call(0, cycle, exchange(&["A", "B"]))), 0);
    // a report of another cycle changes nothing
    assert_eq!(call(10_001, cycle, exchange(&["A"])), PoolOutcome::OtherCycle(cycle + 1));
    assert_eq!(demand(call(10_002, cycle + 1, exchange(&[]))), 2);
    let member = PoolMember { name: "A".into(), is_named: false };
    let news = MemberNews { late: 3, ..MemberNews::default() };
    let late = PoolOp::Exchange(vec![PoolReport { member, news }]);
    assert_eq!(demand(call(10_003, cycle + 1, late)), 5);
    assert_eq!(demand(call(19_999, cycle + 1, exchange(&[]))), 5);
    // after a cycle without demand there is none
    assert_eq!(demand(call(30_000, cycle + 3, exchange(&["C"]))), 0);
}
