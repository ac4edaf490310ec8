//! Requests of several descriptors with pools, hits that are given back, and reservations: in memory, and in each mode
//! over a shared store.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Builder, time::sleep};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedStore},
};
use weir_limit::{
    Coordination, Decision, Descriptor, Domain, Entry, Hits, KeyHasher, Limit, Matched, OverLimitPolicy,
    Period, Request, Reservation, ReservationRequest, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier,
    Timestamp, Values,
    share::{Borrow, Sharing},
};
use weir_store::{MemoryStore, Store, clock::Clock as _};

use crate::arrivals::CYCLE;

/// The capacity of each pool, and the limit of each counter beside them.
const CAPACITY: u32 = 40;
const LIMIT: u32 = 5;

const MODES: [Coordination; 3] = [Coordination::Lease, Coordination::Strict, Coordination::Interval];

/// The values of `client` and of `partner` share a pool each; a partner has no more than [`LIMIT`] by itself. The
/// values of `plain` count alone.
fn rules(mode: Coordination) -> RuleSet {
    rules_of(mode, KeyHasher::random(), CYCLE, &[])
}

/// Returns the rules with other cycles and weights.
fn rules_of(mode: Coordination, hasher: KeyHasher, cycle: Period, weights: &[(&str, u32)]) -> RuleSet {
    let tier = |requests| Tier::fixed_window(requests, cycle);
    let node = |key, tiers: &[Tier], shares| {
        let over_limit_policy = OverLimitPolicy::Ignore;
        let limit = Limit::Tiers { tiers: tiers.iter().cloned().collect(), over_limit_policy };
        let weights = weights.iter().map(|(name, weight)| (Box::from(*name), *weight)).collect();
        let sharing = Sharing { borrow: Borrow::MaxMin, weights, ..Sharing::default() };
        let rule = Rule {
            sharing: if shares { Some(Arc::new(sharing)) } else { None },
            coordination: RuleCoordination { mode: Some(mode), ..RuleCoordination::default() },
            ..Rule::new(limit)
        };
        RuleNode { rule: Some(rule), ..RuleNode::new(key, Values::Any) }
    };
    // another period, since a tier of the pool's would be the same counter
    let own = Tier { period: Period::from_secs(20), ..tier(LIMIT) };
    let nodes = vec![
        node("client", &[tier(CAPACITY)], true),
        node("partner", &[tier(CAPACITY), own], true),
        node("plain", &[tier(LIMIT)], false),
    ];
    RuleSet::new(&[Domain::new("d", nodes)], hasher)
}

/// A store with its rules and clock.
struct Fixture<S> {
    store: S,
    rules: RuleSet,
    clock: SimulatedClock,
}

/// Hits of a descriptor: its key, its value, and how many; below zero are given back.
type Part<'a> = (&'a str, &'a str, i64);

impl<S: Store> Fixture<S> {
    async fn decide(&self, parts: &[Part<'_>]) -> Vec<Decision> {
        let descriptors = parts.iter().map(|(key, value, hits)| Descriptor {
            entries: [Entry { key, value }].into_iter().collect(),
            hits: Some(hits.unsigned_abs()),
            refund: *hits < 0,
            ..Descriptor::default()
        });
        let request = Request { domain: "d", descriptors: descriptors.collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decided = self.store.take(&matched.checks, Scope::Request, self.clock.now()).await;
        decided.expect("it decides").to_vec()
    }

    /// Returns for each part whether it was rejected.
    async fn take(&self, parts: &[Part<'_>]) -> Vec<bool> {
        self.decide(parts).await.iter().map(|decision| decision.over).collect()
    }

    /// Returns the hits that still fit, taken one by one.
    async fn rest(&self, key: &str, value: &str) -> u32 {
        let mut taken = 0;
        while self.take(&[(key, value, 1)]).await == [false] {
            taken += 1;
        }
        taken
    }

    async fn reserve(&self, key: &str, value: &str, least: u64, want: u64) -> Reservation {
        let hold = Period::from_secs(60);
        let request = ReservationRequest { least: Hits(least), want: Hits(want), hold };
        let asked = Request { domain: "d", descriptors: [of(key, value)].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &asked);
        self.store.reserve(&matched.checks[0], request, self.clock.now()).await.expect("it decides")
    }

    async fn release(&self, key: &str, value: &str, reservation: Reservation, unused: u64) {
        let asked = Request { domain: "d", descriptors: [of(key, value)].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &asked);
        let now = self.clock.now();
        self.store.release(&matched.checks[0], reservation, Hits(unused), now).await.expect("it does");
    }
}

fn of<'a>(key: &'a str, value: &'a str) -> Descriptor<'a> {
    Descriptor { entries: [Entry { key, value }].into_iter().collect(), ..Descriptor::default() }
}

/// Runs `$check` with a fixture of the memory store, and of each mode, in simulated time.
macro_rules! everywhere {
    ($check:expr) => {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let start = Timestamp::from_secs(1_700_000_000).window_end(CYCLE);
            let clock = SimulatedClock::new(start);
            let rules = self::rules(Coordination::Lease);
            $check("memory", Fixture { store: MemoryStore::new(1_000), rules, clock }).await;
        });
        for mode in MODES {
            let runtime =
                Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
            runtime.block_on(async {
                let start = Timestamp::from_secs(1_700_000_000).window_end(CYCLE);
                let clock = SimulatedClock::new(start);
                let remote = SimulatedStore::new(clock.clone(), 1).connect(Network::default());
                let settings = CoordinationSettings::default();
                let store = Coordinated::new(remote, Arc::new(clock.clone()), settings);
                // to know the store's clock
                sleep(Period::from_millis(100).into()).await;
                $check(mode.name(), Fixture { store, rules: self::rules(mode), clock }).await;
            });
        }
    };
}

async fn a_request_takes_all_or_nothing<S: Store>(name: &str, store: Fixture<S>) {
    assert_eq!(store.take(&[("client", "A", 30), ("plain", "p", 1)]).await, [false, false], "{name}");
    // the pool has no room for 20 more: the counter beside it is left as it was
    assert_eq!(store.take(&[("plain", "p", 1), ("client", "A", 20)]).await, [false, true], "{name}");
    assert_eq!(store.rest("plain", "p").await, LIMIT - 1, "{name}");
    // the counter has no room: the pool is left as it was, whichever comes first
    for parts in [[("client", "A", 2), ("plain", "p", 1)], [("plain", "p", 1), ("client", "A", 2)]] {
        let rejected: Vec<bool> = parts.iter().map(|(key, ..)| *key == "plain").collect();
        assert_eq!(store.take(&parts).await, rejected, "{name}");
    }
    // two pools: both or none
    assert_eq!(store.take(&[("client", "A", 1), ("partner", "P", 6)]).await, [false, true], "{name}");
    assert_eq!(store.take(&[("partner", "P", 5), ("client", "A", 11)]).await, [false, true], "{name}");
    assert_eq!(store.take(&[("partner", "P", 5), ("client", "A", 3)]).await, [false, false], "{name}");
    // the same member twice
    assert_eq!(store.take(&[("client", "A", 4), ("client", "A", 4)]).await, [false, true], "{name}");
    assert_eq!(store.rest("client", "A").await, 7, "{name}");
    assert_eq!(store.rest("partner", "P").await, 0, "{name}");
}

#[test]
fn requests_with_pools_take_all_or_nothing() {
    everywhere!(a_request_takes_all_or_nothing);
}

async fn hits_that_are_given_back_are_taken_again<S: Store>(name: &str, store: Fixture<S>) {
    assert_eq!(store.rest("client", "A").await, CAPACITY, "{name}");
    // beside a rejection they are not given back, which is no rejection
    assert_eq!(store.rest("plain", "p").await, LIMIT, "{name}");
    assert_eq!(store.take(&[("plain", "p", 1), ("client", "A", -1)]).await, [true, false], "{name}");
    assert_eq!(store.take(&[("client", "A", -7)]).await, [false], "{name}");
    assert_eq!(store.rest("client", "A").await, 7, "{name}");
    // no more than it was granted
    assert_eq!(store.take(&[("client", "A", -100)]).await, [false], "{name}");
    assert_eq!(store.rest("client", "A").await, CAPACITY, "{name}");
    // the tier beside the pool gets them back, too
    assert_eq!(store.rest("partner", "P").await, LIMIT, "{name}");
    assert_eq!(store.take(&[("partner", "P", -3)]).await, [false], "{name}");
    assert_eq!(store.rest("partner", "P").await, 3, "{name}");
    // hits of the cycle before are nobody's any more
    sleep(CYCLE.into()).await;
    assert_eq!(store.take(&[("client", "A", -9)]).await, [false], "{name}");
    assert_eq!(store.rest("client", "A").await, CAPACITY, "{name}");
}

#[test]
fn hits_of_a_pool_are_given_back() {
    everywhere!(hits_that_are_given_back_are_taken_again);
}

async fn hits_are_reserved_and_released<S: Store>(name: &str, store: Fixture<S>) {
    let first = store.reserve("client", "A", 1, 25).await;
    assert_eq!(first.hits, Hits(25), "{name}");
    // an instance that shares a store does not know its clock exactly
    let end = store.clock.now().window_end(CYCLE);
    assert!(first.until <= end && end <= first.until.after(Period::from_millis(5)), "{name}");
    let none = store.reserve("client", "A", 16, 20).await;
    assert_eq!((none.hits, none.decision.over), (Hits(0), true), "{name}");
    let second = store.reserve("client", "A", 1, 25).await;
    assert_eq!(second.hits, Hits(15), "{name}");
    store.release("client", "A", second, 10).await;
    assert_eq!(store.rest("client", "A").await, 10, "{name}");
    // the tier beside the pool bounds it
    let bounded = store.reserve("partner", "P", 1, 25).await;
    assert_eq!(bounded.hits, Hits(u64::from(LIMIT)), "{name}");
    store.release("partner", "P", bounded, 2).await;
    assert_eq!(store.rest("partner", "P").await, 2, "{name}");
    // what was reserved in a cycle that has ended comes not back to the next one
    sleep(CYCLE.into()).await;
    store.release("client", "A", first, 25).await;
    assert_eq!(store.rest("client", "A").await, CAPACITY, "{name}");
}

#[test]
fn hits_of_a_pool_are_reserved_and_released() {
    everywhere!(hits_are_reserved_and_released);
}

/// Weights follow with the next shares, and what was granted counts on. Another cycle is another count, as with the
/// period of any tier.
async fn a_reload_in_mid_cycle_grants_no_hit_twice<S: Store>(name: &str, mut store: Fixture<S>) {
    let (mode, hasher) = (Coordination::parse(name).unwrap_or(Coordination::Lease), KeyHasher::random());
    store.rules = rules_of(mode, hasher, CYCLE, &[]);
    for _ in 0..30 {
        assert_eq!(store.take(&[("client", "A", 1)]).await, [false], "{name}");
    }
    // a few may be held for A
    let before = store.rest("client", "B").await;
    assert!((7..=10).contains(&before), "{name}: {before}");
    store.rules = rules_of(mode, hasher, CYCLE, &[("B", 3)]);
    sleep(Period::from_secs(5).into()).await;
    let after = store.rest("client", "A").await + store.rest("client", "B").await;
    assert_eq!(before + after, 10, "{name}");
    // in the next cycle both ask for more than there is, and B has three quarters of it
    let end = store.clock.now().window_end(CYCLE).since(store.clock.now());
    sleep(Duration::from(end) + Duration::from_millis(20)).await;
    let mut admitted = [0, 0];
    for _ in 0..19 {
        for (member, admitted) in ["A", "B"].into_iter().zip(&mut admitted) {
            for _ in 0..4 {
                *admitted += u32::from(store.take(&[("client", member, 1)]).await == [false]);
            }
        }
        sleep(Period::from_millis(500).into()).await;
    }
    let [a, b] = admitted;
    assert!((39..=CAPACITY).contains(&(a + b)) && (28..=32).contains(&b), "{name}: {admitted:?}");
    // half the cycle, in mid-cycle: all of the capacity, once
    store.rules = rules_of(mode, hasher, Period::from_secs(5), &[("B", 3)]);
    let all = store.rest("client", "A").await + store.rest("client", "B").await;
    assert_eq!(all, CAPACITY, "{name}");
}

#[test]
fn a_pool_follows_a_reload_in_mid_cycle() {
    everywhere!(a_reload_in_mid_cycle_grants_no_hit_twice);
}
