//! One request that names a thousand members of a pool, and what is left of it for another one in the next cycle.

use std::sync::Arc;

use tokio::{
    runtime::Builder,
    time::{Instant, sleep, sleep_until},
};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedRemote, SimulatedStore},
};
use weir_limit::{
    Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OverLimitPolicy, Period, Request, Rule, RuleNode,
    RuleSet, Scope, Tier, Timestamp, Values,
    share::{Borrow, Pool, PoolRule, Sharing},
};
use weir_store::{Store as _, clock::Clock as _};

use crate::arrivals::{CYCLE, MILLIS};

/// Fewer than there are names: those without a place share one.
const CAPACITY: u32 = 600;
const NAMES: usize = 1_000;

/// The honest one asks for as much as there is, or for twice that, evenly. It is one of the members already, or comes
/// after them.
const ASKED: [u32; 2] = [CAPACITY, 2 * CAPACITY];
const KNOWN: [bool; 2] = [true, false];

/// Calls `admitted` with each kind to borrow, the hits that the honest one asks for, and whether it is known; it returns
/// those that were admitted.
fn check(admitted: impl Fn(Sharing, u32, bool) -> u32) {
    for borrow in [Borrow::ByDemand, Borrow::MaxMin] {
        for asked in ASKED {
            for is_known in KNOWN {
                let admitted = admitted(Sharing { borrow, ..Sharing::default() }, asked, is_known);
                let of = format!("{admitted} of {asked}, {borrow:?}, known: {is_known}");
                assert!((CAPACITY * 9 / 10..=CAPACITY).contains(&admitted), "{of}");
            }
        }
    }
}

fn names() -> Vec<String> {
    (0..NAMES).map(|i| format!("invented-{i}")).collect()
}

#[test]
fn a_thousand_names_in_a_request_leave_the_next_cycle_to_those_that_ask() {
    check(|sharing, asked, is_known| {
        let (mut pool, sharing) = (Pool::concurrent(), Arc::new(sharing));
        let rule = PoolRule { capacity: CAPACITY, cycle: CYCLE, sharing: &sharing };
        let mut take = |names: &[&str], at: u32| {
            let now = Timestamp::from_millis(u64::from(at));
            let decided = names.iter().map(|name| pool.decide(&rule, name, 1, true, now).is_admitted);
            let admitted = decided.filter(|is_admitted| *is_admitted).count();
            if let Some(computation) = pool.begin_shares(CAPACITY, CYCLE, &sharing) {
                pool.install(computation.run());
            }
            admitted as u32
        };
        if is_known {
            take(&["honest"], 0);
        }
        take(&names().iter().map(String::as_str).collect::<Vec<_>>(), MILLIS / 2);
        (0..asked).map(|i| take(&["honest"], MILLIS + i * MILLIS / asked)).sum()
    });
}

/// An instance, with the rules of all of them.
struct Instance {
    store: Coordinated<SimulatedRemote>,
    rules: Arc<RuleSet>,
    clock: SimulatedClock,
}

impl Instance {
    /// Takes a hit of each of `names` in one request. Returns those that were admitted.
    async fn take(&self, names: &[&str]) -> usize {
        let descriptors = names.iter().map(|name| Descriptor {
            entries: [Entry { key: "client", value: name }].into_iter().collect(),
            ..Descriptor::default()
        });
        let request = Request { domain: "d", descriptors: descriptors.collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decided = self.store.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
        decided.expect("it decides").iter().filter(|decision| !decision.over).count()
    }
}

async fn admitted_over_instances(sharing: Sharing, asked: u32, is_known: bool) -> u32 {
    let tier = Tier::fixed_window(CAPACITY, CYCLE);
    let limit =
        Limit::Tiers { tiers: [tier].into_iter().collect(), over_limit_policy: OverLimitPolicy::Ignore };
    let rule = Rule { sharing: Some(Arc::new(sharing)), ..Rule::new(limit) };
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("client", Values::Any) };
    let rules = Arc::new(RuleSet::new(&[Domain::new("d", vec![node])], KeyHasher::random()));
    let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_000).window_end(CYCLE));
    let begun = Instant::now();
    let store = SimulatedStore::new(clock.clone(), 1);
    let instances = [0, 1, 2].map(|number| {
        let settings =
            CoordinationSettings { instance: format!("i{number}"), ..CoordinationSettings::default() };
        let store = Coordinated::new(store.connect(Network::default()), Arc::new(clock.clone()), settings);
        Instance { store, rules: Arc::clone(&rules), clock: clock.clone() }
    });
    // to know each other, and the store's clock
    sleep(Period::from_secs(5).into()).await;
    if is_known {
        instances[0].take(&["honest"]).await;
    }
    instances[0].take(&names().iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut admitted = 0;
    for i in 0..asked {
        let at = Period::from_millis(u64::from(MILLIS + i * MILLIS / asked));
        sleep_until(begun + at.into()).await;
        admitted += instances[i as usize % 3].take(&["honest"]).await;
    }
    admitted as u32
}

#[test]
fn a_thousand_names_in_a_request_leave_the_next_cycle_to_those_that_ask_over_instances() {
    check(|sharing, asked, is_known| {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(admitted_over_instances(sharing, asked, is_known))
    });
}
