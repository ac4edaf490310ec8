//! Pools, step by step.

use std::{collections::BTreeMap, sync::Arc};

use proptest::{collection::vec, prelude::*};
use weir_limit::{
    Period, Timestamp,
    share::{AT_ONCE, Anonymous, Borrow, Computation, Lend, OTHER, Pool, PoolDecision, PoolRule, Sharing},
};

use crate::arrivals::CYCLE;

/// A pool with its rule, at an instant.
struct Fixture {
    pool: Pool,
    sharing: Sharing,
    capacity: u32,
    /// In milliseconds since the start of the first cycle.
    now: u64,
}

/// Returns the names of the members, sorted.
fn names(pool: &Pool) -> Vec<&str> {
    let mut names: Vec<&str> = pool.members().map(|(name, _)| name).collect();
    names.sort_unstable();
    names
}

impl Fixture {
    fn new(capacity: u32, sharing: Sharing) -> Self {
        Self { pool: Pool::default(), sharing, capacity, now: 0 }
    }

    fn next_cycle(capacity: u32) -> Self {
        Self::new(capacity, Sharing { lend: Lend::NextCycle, ..Sharing::default() })
    }

    fn ask(&mut self, member: &str, hits: u32) -> PoolDecision {
        let rule = PoolRule { capacity: self.capacity, cycle: CYCLE, sharing: &self.sharing };
        self.pool.decide(&rule, member, hits, true, Timestamp::from_millis(1_000_000 + self.now))
    }

    /// Sends `hits` requests of one hit, and returns how many were admitted.
    fn send(&mut self, member: &str, hits: u32) -> u32 {
        (0..hits).map(|_| u32::from(self.ask(member, 1).is_admitted)).sum()
    }

    fn goto(&mut self, cycle: u64, millis: u64) {
        self.now = cycle * 10_000 + millis;
    }

    fn shares(&mut self, members: &str) -> Vec<u32> {
        let rule = PoolRule { capacity: self.capacity, cycle: CYCLE, sharing: &self.sharing };
        self.pool.advance(&rule, Timestamp::from_millis(1_000_000 + self.now));
        let share = |name: char| self.pool.members().find(|(member, _)| *member == name.to_string());
        members.chars().map(|name| share(name).map_or(0, |(_, member)| member.allowance)).collect()
    }
}

#[test]
fn the_worked_example_runs_through_its_cycles() {
    let mut pool = Fixture::next_cycle(40);
    let asks = |pool: &mut Fixture, demands: [u32; 4]| {
        for (name, demand) in ["A", "B", "C", "D"].into_iter().zip(demands) {
            pool.send(name, demand);
        }
    };
    asks(&mut pool, [10; 4]);
    for (cycle, demands, expected) in [
        (1, [2, 15, 10, 10], [5, 15, 10, 10]),
        (2, [3, 15, 50, 10], [3, 11, 16, 10]),
        (3, [0, 15, 50, 5], [1, 12, 22, 5]),
    ] {
        pool.goto(cycle, 100);
        asks(&mut pool, demands);
        pool.goto(cycle + 1, 0);
        assert_eq!(pool.shares("ABCD"), expected);
    }
}

#[test]
fn the_first_member_of_all_may_use_everything_and_the_next_one_waits() {
    let mut pool = Fixture::next_cycle(40);
    assert_eq!(pool.send("A", 50), 40);
    // nothing is left in this cycle
    assert_eq!(pool.send("B", 5), 0);
    pool.goto(1, 0);
    assert!(pool.ask("B", 1).is_admitted);
    let shares = pool.shares("AB");
    assert_eq!(shares.iter().sum::<u32>(), 40);
    assert!(shares[1] >= 5);
}

#[test]
fn a_newcomer_has_its_share_at_once_and_those_above_their_default_pay() {
    let mut pool = Fixture::next_cycle(40);
    for cycle in 0..2 {
        pool.goto(cycle, 0);
        pool.send("A", 10);
        pool.send("B", 40);
        pool.send("C", 10);
    }
    pool.goto(2, 0);
    assert_eq!(pool.send("B", 40), 20);
    // B has 20 of a default of 10 by now, and keeps it. The others share what is left, the newcomer among them.
    let admitted = ["D", "A", "C"].map(|name| pool.send(name, 40));
    assert_eq!(admitted.iter().sum::<u32>(), 20);
    assert!(admitted.iter().all(|admitted| [6, 7].contains(admitted)), "{admitted:?}");
    // two of them in one step share what is left
    pool.goto(3, 0);
    pool.send("A", 1);
    let taken = pool.send("E", 10) + pool.send("F", 10);
    assert!((12..=14).contains(&taken), "{taken}");
    assert!(pool.pool.granted() <= 40);
}

#[test]
fn headroom_is_for_newcomers() {
    let mut pool = Fixture::new(100, Sharing { headroom: 20, lend: Lend::NextCycle, ..Sharing::default() });
    pool.send("A", 100);
    pool.send("B", 1);
    pool.goto(1, 0);
    assert_eq!(pool.send("A", 200) + pool.send("B", 200), 80);
    assert_eq!(pool.send("C", 200), 20);
}

#[test]
fn a_member_that_comes_back_has_its_reserve_and_one_that_was_forgotten_its_default() {
    for (away, admitted) in [(5, 2), (12, 20)] {
        let mut pool = Fixture::next_cycle(40);
        for cycle in 0..2 + away {
            pool.goto(cycle, 0);
            if cycle < 2 {
                pool.send("A", 20);
            }
            // leaves room in the last cycle
            let hits = if cycle + 1 == 2 + away { 10 } else { 40 };
            pool.send("B", hits);
        }
        pool.goto(2 + away, 0);
        let first = pool.send("A", 40);
        if away == 12 {
            assert_eq!(first, admitted);
            assert!(pool.pool.members().len() == 2);
        } else {
            // B asked for 10 only, so A has what B leaves
            assert!(first >= admitted, "{first}");
        }
    }
}

#[test]
fn members_without_a_place_share_one() {
    let mut pool = Fixture::new(100, Sharing { max_members: 3, lend: Lend::NextCycle, ..Sharing::default() });
    pool.sharing.weights.insert("named".into(), 2);
    for name in ["a", "b", "c", "d", "named"] {
        pool.ask(name, 1);
    }
    let found = names(&pool.pool);
    assert_eq!(found, ["a", "b", "named", OTHER]);
    // more members than hits: the others' defaults would be below one
    let mut pool = Fixture::next_cycle(3);
    for name in ["a", "b", "c", "d", "e"] {
        pool.ask(name, 1);
    }
    let found = names(&pool.pool);
    assert_eq!(found, ["a", "b", "c", OTHER]);
}

#[test]
fn requests_without_a_name_are_denied_allowed_or_share() {
    for (anonymous, admitted, members) in
        [(Anonymous::Deny, 0, 0), (Anonymous::Allow, 50, 0), (Anonymous::Share, 40, 1)]
    {
        let mut pool = Fixture::new(40, Sharing { anonymous, ..Sharing::default() });
        assert_eq!(pool.send("", 50), admitted, "{anonymous:?}");
        assert_eq!(pool.pool.members().len(), members);
        assert_eq!(pool.pool.granted(), if anonymous == Anonymous::Share { 40 } else { 0 });
    }
}

#[test]
fn minimum_and_maximum_bound_the_default() {
    let sharing = Sharing { min: 5, max: Some(12), lend: Lend::NextCycle, ..Sharing::default() };
    let mut pool = Fixture::new(40, sharing);
    pool.sharing.weights.insert("heavy".into(), 30);
    pool.send("heavy", 40);
    pool.send("light", 40);
    pool.send("third", 40);
    pool.goto(1, 0);
    assert_eq!((pool.send("heavy", 40), pool.send("light", 40), pool.send("third", 40)), (12, 12, 12));
}

/// Nothing is kept for hits that were rejected: their requests are gone.
#[test]
fn a_burst_of_rejected_hits_keeps_nothing() {
    for borrow in [Borrow::ByDemand, Borrow::MaxMin] {
        let mut pool = Fixture::new(1_000, Sharing { borrow, ..Sharing::default() });
        for cycle in 0..3 {
            for step in 0..100 {
                pool.goto(cycle, step * 100);
                pool.send("A", 2);
                pool.send("B", 20);
            }
        }
        // A sends ten times its default at the start, and nothing later
        pool.goto(3, 0);
        let first = pool.send("A", 5_000);
        let mut rest = 0;
        for step in 0..100 {
            pool.goto(3, step * 100 + 50);
            rest += pool.send("B", 20);
        }
        assert!(first + rest >= 980, "{borrow:?}: {first} + {rest}");
    }
}

/// An owner below its default takes what is not kept for others, before those that borrow.
#[test]
fn an_owner_that_returns_is_served_before_borrowers() {
    let mut pool = Fixture::new(1_000, Sharing::default());
    for cycle in 0..3 {
        for step in 0..100 {
            pool.goto(cycle, step * 100);
            pool.send("A", 1);
            pool.send("B", 30);
        }
    }
    for step in 0..40 {
        pool.goto(3, step * 100);
        pool.send("B", 30);
    }
    pool.goto(3, 4_010);
    // most of A's default is lent by now. What it asked for in the last cycle is released in line with time.
    let admitted = pool.send("A", 200);
    assert!((50..=80).contains(&admitted), "{admitted}");
    assert!(pool.pool.granted() <= 1_000);
}

#[test]
fn a_request_of_several_hits_counts_as_many_or_none() {
    let mut pool = Fixture::next_cycle(40);
    assert!(pool.ask("A", 30).is_admitted);
    let rejected = pool.ask("A", 11);
    assert!(!rejected.is_admitted);
    assert_eq!((rejected.before, rejected.remaining, pool.pool.granted()), (30, 10, 30));
    assert!(pool.ask("A", 10).is_admitted);
    // more than any pool has
    assert!(!pool.ask("A", u32::MAX).is_admitted);
    pool.goto(1, 0);
    assert_eq!(pool.pool.members().next().expect("A").1.asked, u32::MAX);
}

#[test]
fn hits_that_are_given_back_are_there_for_all() {
    let mut pool = Fixture::next_cycle(40);
    assert_eq!(pool.send("A", 40), 40);
    let rule = PoolRule { capacity: 40, cycle: CYCLE, sharing: &pool.sharing };
    pool.pool.give_back(&rule, "A", 5, Timestamp::from_millis(1_000_000));
    pool.pool.give_back(&rule, "unknown", 5, Timestamp::from_millis(1_000_000));
    assert_eq!(pool.pool.granted(), 35);
    assert_eq!(pool.send("B", 10), 5);
}

#[test]
fn a_clock_that_steps_back_brings_no_cycle_back() {
    let mut pool = Fixture::next_cycle(40);
    pool.goto(1, 5_000);
    assert_eq!(pool.send("A", 50), 40);
    pool.goto(0, 9_999);
    assert_eq!(pool.send("A", 50), 0);
    pool.goto(1, 9_999);
    assert_eq!(pool.send("A", 50), 0);
    pool.goto(2, 0);
    assert_eq!(pool.send("A", 50), 40);
}

#[test]
fn a_changed_capacity_applies_at_once() {
    let mut pool = Fixture::new(40, Sharing::default());
    assert_eq!(pool.send("A", 50), 40);
    pool.capacity = 60;
    assert_eq!(pool.send("A", 50), 20);
    pool.capacity = 10;
    assert_eq!(pool.send("A", 50), 0);
    pool.goto(1, 0);
    assert_eq!(pool.send("A", 50), 10);
}

#[test]
fn short_and_long_cycles_have_their_steps() {
    let sharing = Sharing::default();
    let steps =
        |millis| PoolRule { capacity: 1, cycle: Period::from_millis(millis), sharing: &sharing }.steps();
    assert_eq!([1, 200, 500, 1_000, 2_000, 10_000, 86_400_000].map(steps), [2, 2, 5, 10, 20, 20, 20]);
    // one of a millisecond works
    let rule = PoolRule { capacity: 3, cycle: Period::from_millis(1), sharing: &sharing };
    let mut pool = Pool::default();
    for millis in 0..20 {
        let admitted = (0..9)
            .filter(|_| pool.decide(&rule, "A", 1, true, Timestamp::from_millis(millis)).is_admitted)
            .count();
        assert_eq!(admitted, 3);
    }
}

/// What happens to a pool whose shares are computed beside decisions.
#[derive(Clone, Debug)]
enum Act {
    Ask(usize, u32),
    GiveBack(usize, u32),
    /// A request that was rejected elsewhere takes its hits back.
    Undo(usize, u32),
    Later(u64),
    /// Somebody begins to compute shares, or installs them.
    Begin,
    Install,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let member = || 0..40_usize;
    vec(
        prop_oneof![
            8 => (member(), 1..9_u32).prop_map(|(member, hits)| Act::Ask(member, hits)),
            1 => (member(), 1..9_u32).prop_map(|(member, hits)| Act::GiveBack(member, hits)),
            1 => (member(), 1..9_u32).prop_map(|(member, hits)| Act::Undo(member, hits)),
            2 => prop_oneof![0..700_u64, Just(10_000), Just(200_000)].prop_map(Act::Later),
            2 => Just(Act::Begin),
            2 => Just(Act::Install),
        ],
        1..300,
    )
}

fn sharings() -> impl Strategy<Value = Sharing> {
    let kinds = prop_oneof![Just(Borrow::ByDemand), Just(Borrow::MaxMin), Just(Borrow::None)];
    let lends = prop_oneof![Just(Lend::WithinCycle), Just(Lend::NextCycle)];
    let bounds = (0..9_u32, proptest::option::of(4..60_u32));
    (kinds, lends, 0..60_u32, 20..45_u32, bounds, any::<bool>()).prop_map(
        |(borrow, lend, headroom, max_members, (min, max), is_weighted)| Sharing {
            borrow,
            lend,
            headroom,
            max_members,
            min,
            max,
            weights: if is_weighted { [("m3".into(), 4), ("m30".into(), 2)].into() } else { [].into() },
            ..Sharing::default()
        },
    )
}

proptest! {
    /// However late shares come, no cycle exceeds the capacity, its sums stay right, and a newcomer has its default at
    /// once.
    #[test]
    fn shares_that_come_late_break_no_bound(sharing in sharings(), capacity in 0..400_u32, acts in acts()) {
        let sharing = Arc::new(sharing);
        let rule = PoolRule { capacity, cycle: CYCLE, sharing: &sharing };
        let (mut pool, mut now) = (Pool::concurrent(), 1_000_000);
        let mut begun: Option<Computation> = None;
        for act in acts {
            let at = Timestamp::from_millis(now);
            match act {
                Act::Ask(member, hits) => {
                    let name = format!("m{member}");
                    pool.advance(&rule, at);
                    let (is_known, left) = (pool.has(&name), capacity - pool.granted());
                    let decision = pool.decide(&rule, &name, hits, true, at);
                    let default = pool.member(&name).map_or(0, |member| member.default);
                    if !is_known && pool.members().len() > AT_ONCE {
                        prop_assert!(decision.is_admitted || hits > default.min(left), "{decision:?}");
                    }
                }
                Act::GiveBack(member, hits) => {
                    pool.give_back(&rule, &format!("m{member}"), hits, at);
                }
                Act::Undo(member, hits) => {
                    let name = format!("m{member}");
                    if pool.decide(&rule, &name, hits, true, at).is_admitted {
                        pool.undo(&name, hits.into());
                    }
                }
                Act::Later(millis) => now += millis,
                Act::Begin if begun.is_none() => begun = pool.begin_shares(capacity, CYCLE, &sharing),
                Act::Begin => prop_assert!(pool.is_computing() && !pool.is_due()),
                Act::Install => {
                    if let Some(computation) = begun.take() {
                        pool.install(computation.run());
                    }
                }
            }
            pool.assert_invariants();
            prop_assert!(pool.granted() <= capacity);
            let granted: u32 = pool.members().map(|(_, member)| member.granted).sum();
            prop_assert_eq!(pool.granted(), granted);
        }
        // in the end there are the shares that are computed at once
        if let Some(computation) = begun {
            pool.install(computation.run());
        }
        if let Some(computation) = pool.begin_shares(capacity, CYCLE, &sharing) {
            pool.install(computation.run());
            let all: u64 = pool.members().map(|(_, member)| u64::from(member.allowance)).sum();
            prop_assert!(all <= u64::from(capacity) && pool.kept() + u64::from(pool.granted()) <= u64::from(capacity));
        }
    }
}

/// As many names with the largest weights as a rule may have, other names, and the highest demand of all: nothing
/// overflows, and there are no more members than there may be.
#[test]
fn the_most_members_with_the_most_demand_do_not_overflow() {
    let weight = |i: u32| if i == 0 { (1 << 20) - 1_022 } else { 1 };
    let weights: BTreeMap<Box<str>, u32> =
        (0..1_023).map(|i| (format!("m{i}").into_boxed_str(), weight(i))).collect();
    for borrow in [Borrow::ByDemand, Borrow::MaxMin] {
        let weights = weights.clone();
        let sharing = Sharing { borrow, weights, max_members: 1_024, ..Sharing::default() };
        let sharing = Arc::new(sharing);
        let rule = PoolRule { capacity: u32::MAX, cycle: CYCLE, sharing: &sharing };
        let mut pool = Pool::concurrent();
        for cycle in 0..3_u64 {
            let now = Timestamp::from_millis(1_000_000 + cycle * 10_000);
            for i in 0..1_200 {
                pool.decide(&rule, &format!("m{i}"), u32::MAX, true, now);
            }
            let computation = pool.begin_shares(u32::MAX, CYCLE, &sharing).expect("they are due");
            pool.install(computation.run());
            assert_eq!(pool.members().len(), 1_024);
            let all: u64 = pool.members().map(|(_, member)| u64::from(member.allowance)).sum();
            assert_eq!(all, u64::from(u32::MAX), "{borrow:?}");
        }
    }
}

/// Members whose accounts change elsewhere: what is kept for them follows.
#[test]
fn hits_of_other_instances_change_what_is_kept() {
    let sharing = Sharing::default();
    let rule = PoolRule { capacity: 40, cycle: CYCLE, sharing: &sharing };
    let mut pool = Pool::default();
    pool.decide(&rule, "A", 40, true, Timestamp::from_millis(1_000_000));
    pool.add("A", 0, -30);
    pool.assert_invariants();
    let decided = pool.decide(&rule, "A", 5, true, Timestamp::from_millis(1_000_000));
    assert_eq!((decided.is_admitted, decided.before), (true, 10));
    // a cycle begins with the shares of the last one, all of which is kept again
    pool.turn(&rule, 101);
    pool.assert_invariants();
    assert_eq!(pool.kept(), 40);
    assert!(pool.decide(&rule, "A", 5, true, Timestamp::from_millis(1_010_000)).is_admitted);
    // an account of nobody is the pool's
    pool.add("unknown", 9, 7);
    assert_eq!(pool.granted(), 12);
}
