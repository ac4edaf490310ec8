//! Measures the memory of a coordinated counter. An instance may have a million of them.

use std::{sync::Arc, time::Duration};

use weir::{
    clock::Clock as _,
    limit::{
        Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Period, Request, Rule, RuleNode,
        RuleSet, Scope, Timestamp, Values, algorithm::CounterState,
    },
    store::{
        Store as _,
        coordinated::{Coordinated, CoordinationSettings},
        remote::{Command, Remote, RemoteError, Replies, Reply},
        simulated::SimulatedClock,
    },
};

const COUNTERS: u32 = 100_000;

/// A shared store that keeps nothing, so that all allocations are the instance's.
struct EmptyStore(SimulatedClock);

impl Remote for EmptyStore {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        let now = self.0.now();
        let reply = |command: &Command| {
            let counters = command.target.tiers.iter().map(|tier| CounterState::unused(tier, now)).collect();
            Ok(Reply { counters, ..Reply::default() })
        };
        Ok(Replies { now, replies: commands.iter().map(reply).collect() })
    }

    async fn heartbeat(&self, _: &str, _: Period) -> Result<usize, RemoteError> {
        Ok(1)
    }
}

fn rules() -> RuleSet {
    let limit = Limit::fixed_window(1_000, Period::from_secs(3_600));
    let node = RuleNode { rule: Some(Rule::new(limit)), ..RuleNode::new("tenant", Values::Any) };
    RuleSet::new(&[Domain { name: "shop".into(), nodes: vec![node] }], KeyHasher::random())
}

/// Creates a store that has counted one hit of each key and reported all of them.
async fn filled() -> Coordinated<EmptyStore> {
    let clock = SimulatedClock::new(Timestamp::from_secs(1_000_000));
    let rules = rules();
    // the store grants no lease
    let settings =
        CoordinationSettings { coordination: Coordination::Interval, ..CoordinationSettings::default() };
    let store = Coordinated::new(EmptyStore(clock.clone()), Arc::new(clock.clone()), settings);
    for i in 0..COUNTERS {
        let tenant = format!("tenant-{i:06}");
        let entries = [Entry { key: "tenant", value: &tenant }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&rules, &request);
        let decisions = store.take(&matched.checks, Scope::Descriptor, clock.now()).await;
        assert!(!decisions.expect("decisions")[0].over);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(store.counters(), COUNTERS as usize);
    store
}

#[test]
fn a_coordinated_counter_takes_less_than_400_bytes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let mut store = None;
    let measured = allocation_counter::measure(|| store = Some(runtime.block_on(filled())));
    let each = measured.bytes_current / i64::from(COUNTERS);
    println!("{COUNTERS} counters hold {} bytes: {each} bytes per counter", measured.bytes_current);
    assert!((100..MAX_BYTES).contains(&each), "{each} bytes");
}

/// The maximum size of a counter in bytes, including the table's free slots.
const MAX_BYTES: i64 = 400;
