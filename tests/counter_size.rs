//! What a coordinated counter costs in memory, of which there may be a million.

use std::{sync::Arc, time::Duration};

use weir::{
    clock::Clock as _,
    limit::{
        Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Period, Request, Rule, RuleNode, RuleSet,
        Scope, Timestamp, Values, algorithm::CounterState,
    },
    store::{
        Store as _,
        coordinated::{Coordinated, CoordinationSettings},
        remote::{Command, Remote, RemoteError, Replies, Reply},
        simulated::SimulatedClock,
    },
};

const CELLS: u32 = 100_000;

/// A shared store that remembers nothing, so that all that is allocated is of the instance.
struct Forgetful(SimulatedClock);

impl Remote for Forgetful {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        let now = self.0.now();
        let reply = |command: &Command| {
            let counters = command.target.tiers.iter().map(|tier| CounterState::unused(tier, now)).collect();
            Ok(Reply { granted: 0, counters })
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

/// The store after one hit of each key, all of which it was told of.
async fn filled() -> Coordinated<Forgetful> {
    let clock = SimulatedClock::new(Timestamp::from_secs(1_000_000));
    let rules = rules();
    let store =
        Coordinated::new(Forgetful(clock.clone()), Arc::new(clock.clone()), CoordinationSettings::default());
    for i in 0..CELLS {
        let tenant = format!("tenant-{i:06}");
        let entries = [Entry { key: "tenant", value: &tenant }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&rules, &request);
        let taken = store.take(&matched.checks, Scope::Descriptor, clock.now()).await;
        assert!(!taken.expect("it decides")[0].over);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(store.counters(), CELLS as usize);
    store
}

#[test]
fn a_coordinated_counter_is_small() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let mut store = None;
    let measured = allocation_counter::measure(|| store = Some(runtime.block_on(filled())));
    let each = measured.bytes_current / i64::from(CELLS);
    println!("{CELLS} cells hold {} bytes: {each} bytes a cell", measured.bytes_current);
    assert!((100..MOST).contains(&each), "{each} bytes");
}

/// In bytes, the table's free places included.
const MOST: i64 = 600;
