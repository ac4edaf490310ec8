//! What a shared store does for pools, command by command. `crates/weir-remotes/tests/redis/pools.rs` compares Redis with it.

use std::sync::Arc;

use weir_coordinate::simulated::SimulatedPools;
use weir_limit::{
    OverLimitPolicy, Tier, Timestamp,
    share::{OTHER, PoolTable, Terms},
};
use weir_store::{
    pool_command::{Leased, MemberNews, PoolCommand, PoolMember, PoolOp, PoolOutcome, PoolReport},
    remote::Target,
};

use crate::arrivals::{CYCLE, MILLIS};

const PLACES: u32 = 4;
const FORGET_AFTER: u32 = 2;

/// A store with one pool.
struct Store {
    pools: SimulatedPools,
    target: Arc<Target>,
}

impl Store {
    fn new() -> Self {
        let tier = Tier::fixed_window(100, CYCLE);
        let over_limit_policy = OverLimitPolicy::Ignore;
        let target = Arc::new(Target { path: "d|client".into(), tiers: [tier].into(), over_limit_policy });
        Self { pools: SimulatedPools::default(), target }
    }

    /// Carries out `op` about `cycle`, at this millisecond of the cycle `at`.
    fn send(&mut self, cycle: u64, (at, millis): (u64, u64), op: PoolOp) -> PoolOutcome {
        let now = Timestamp::from_millis(at * u64::from(MILLIS) + millis);
        let target = Arc::clone(&self.target);
        let command = PoolCommand { target, cycle, places: PLACES, forget_after: FORGET_AFTER, op };
        self.pools.execute(command, now)
    }

    fn exchange(&mut self, cycle: u64, at: (u64, u64), asked: &[(&str, u32)]) -> PoolTable {
        let report = |(name, asked): &(&str, u32)| {
            let news = MemberNews { asked: *asked, ..MemberNews::default() };
            PoolReport { member: member(name), news }
        };
        self.report(cycle, at, asked.iter().map(report).collect())
    }

    fn report(&mut self, cycle: u64, at: (u64, u64), reports: Vec<PoolReport>) -> PoolTable {
        match self.send(cycle, at, PoolOp::Exchange(reports)) {
            PoolOutcome::Table(table) => table,
            outcome => panic!("{outcome:?}"),
        }
    }

    fn lease(&mut self, at: (u64, u64), name: &str, tries: &[u32]) -> Leased {
        let terms = Terms { capacity: 100, own: 20, limit: 60, free: 90 };
        let tries = tries.iter().copied().collect();
        let op = PoolOp::Lease { member: member(name), terms, tries, ahead: 0, instances: 2 };
        match self.send(at.0, at, op) {
            PoolOutcome::Leased(leased) => leased,
            outcome => panic!("{outcome:?}"),
        }
    }
}

fn member(name: &str) -> PoolMember {
    PoolMember { name: name.into(), is_named: false }
}

fn names(table: &PoolTable) -> Vec<&str> {
    table.members.iter().map(|member| &*member.name).collect()
}

#[test]
fn each_request_is_granted_as_a_whole_or_not_at_all() {
    let mut store = Store::new();
    let leased = store.lease((5, 0), "A", &[50, 20, 10, 1]);
    assert_eq!(leased.tries.as_slice(), [true, false, true, false]);
    assert_eq!((leased.granted, leased.total), (60, 60));
    // the pool has 40 left, 10 of them for the others
    assert_eq!(store.lease((5, 0), "B", &[50, 30, 1]).tries.as_slice(), [false, true, false]);
    // but no more than its own part is kept for one of those
    assert_eq!(store.lease((5, 0), "C", &[21, 8, 2, 1]).tries.as_slice(), [false, true, true, false]);
    assert_eq!(store.exchange(5, (5, 1), &[]).total, 100);
}

#[test]
fn a_member_that_is_forgotten_and_comes_back_at_two_instances_has_one_place() {
    let mut store = Store::new();
    store.exchange(5, (5, 0), &[("A", 1), ("B", 1)]);
    for cycle in 6..9 {
        let table = store.exchange(cycle, (cycle, 0), &[("B", 1)]);
        assert_eq!(names(&table), if cycle < 8 { vec!["A", "B"] } else { vec!["B"] }, "{cycle}");
    }
    for _ in 0..2 {
        let table = store.exchange(8, (8, 100), &[("A", 3)]);
        assert_eq!(names(&table), ["A", "B"]);
        assert!(table.members[0].is_new && !table.members[1].is_new);
    }
    assert_eq!(store.exchange(8, (8, 200), &[]).members[0].asked, 6);
}

#[test]
fn names_without_a_place_share_one_however_many_there_are() {
    let mut store = Store::new();
    for i in 0..50 {
        store.exchange(5, (5, 0), &[(&format!("invented-{i}"), 1)]);
    }
    let table = store.exchange(5, (5, 1), &[]);
    assert_eq!(table.members.len(), PLACES as usize + 1);
    let other = table.members.iter().find(|member| &*member.name == OTHER).expect("the shared place");
    assert_eq!(other.asked, 50 - PLACES);
    // a name of the rule has a place all the same
    let named = PoolMember { name: "real".into(), is_named: true };
    let news = MemberNews { asked: 1, ..MemberNews::default() };
    store.report(5, (5, 2), vec![PoolReport { member: named, news }]);
    assert!(names(&store.exchange(5, (5, 3), &[])).contains(&"real"));
}

#[test]
fn a_command_of_another_cycle_grants_nothing() {
    let mut store = Store::new();
    let terms = Terms { capacity: 100, own: 0, limit: 100, free: 100 };
    let tries = || [1].into_iter().collect();
    let lease = || PoolOp::Lease { member: member("A"), terms, tries: tries(), ahead: 0, instances: 1 };
    assert_eq!(store.send(5, (6, 0), lease()), PoolOutcome::OtherCycle(6));
    assert_eq!(store.send(2, (6, 0), lease()), PoolOutcome::OtherCycle(6));
    assert_eq!(store.exchange(6, (6, 1), &[]).total, 0);
    // a clock that is a little ahead begins the next one, and one that is more so does not
    assert_eq!(store.send(7, (6, 9_899), lease()), PoolOutcome::OtherCycle(6));
    assert!(matches!(store.send(7, (6, 9_900), lease()), PoolOutcome::Leased(_)));
}

#[test]
fn a_late_report_is_demand_of_the_cycle_before() {
    let mut store = Store::new();
    let news = MemberNews { late: 1, asked: 2, granted: 0 };
    let table = store.report(6, (6, 1_000), vec![PoolReport { member: member("A"), news }]);
    let counts = &table.members[0];
    assert_eq!((table.cycle, counts.demand, counts.asked, counts.is_new), (6, 1, 2, false));
}

#[test]
fn a_caller_that_begins_the_next_cycle_leaves_the_others_the_demand_of_the_last_one() {
    let mut store = Store::new();
    store.exchange(5, (5, 0), &[("A", 7)]);
    let demand = |table: &PoolTable| table.members[0].demand;
    assert_eq!(demand(&store.exchange(6, (6, 9_950), &[])), 7);
    // its clock is ahead, and in its cycle nothing was asked for in the cycle before
    assert_eq!(demand(&store.exchange(7, (6, 9_950), &[])), 0);
    assert_eq!(demand(&store.exchange(6, (6, 9_960), &[])), 7);
}
