//! Hits of keys that have had none before, so that `strict` and `lease` wait for the shared store.

use std::{sync::Arc, time::Duration};

use tokio::runtime::{Builder, Runtime};
use weir_coordinate::{Coordinated, CoordinationSettings, simulated::SimulatedClock};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, Hits, KeyHasher, Limit, Matched, Period, Request, Rule,
    RuleNode, RuleSet, Scope, Timestamp, Values, algorithm::CounterState,
};
use weir_store::{
    Store as _,
    clock::Clock as _,
    remote::{Command, Exchange, Heartbeat, Members, Remote, RemoteError, Replies, Reply},
};

/// The number of keys.
pub(crate) const KEYS: u32 = 1_000;

/// The number of instances that share the store, unless there is only one.
const INSTANCES: usize = 3;

/// The time until nothing is known of the keys any more: the period of the limit, and a visit of the sweep.
const AFTERWARDS: Duration = Duration::from_secs(20);

/// A store that keeps nothing, grants everything and replies at once.
struct ScriptedStore {
    clock: SimulatedClock,
    instances: usize,
}

/// A store, and requests of different keys.
pub(crate) struct Waiting {
    /// Its clock is paused, and advances when nothing is left to do.
    runtime: Runtime,
    store: Coordinated<ScriptedStore>,
    clock: SimulatedClock,
    matched: Vec<Matched<'static>>,
    /// The hits of each key.
    hits: u32,
}

impl Remote for ScriptedStore {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        let now = self.clock.now();
        let reply = |command: &Command| {
            let Exchange { runs, lease, .. } = &command.exchange;
            let granted = lease.map_or(0, |lease| lease.want);
            let taken = runs.iter().map(|run| run.tries).collect();
            let counters = command.target.tiers.iter().map(|tier| {
                let mut state = CounterState::unused(tier, now);
                state.take(tier, now, Hits(granted + command.exchange.tried()));
                state
            });
            Ok(Reply { granted, taken, counters: counters.collect(), ..Reply::default() })
        };
        Ok(Replies { now, replies: commands.iter().map(reply).collect() })
    }

    async fn heartbeat(&self, _: Heartbeat<'_>) -> Result<Members, RemoteError> {
        Ok(self.instances.into())
    }
}

/// Returns a request of each key, and what it matches. They live as long as the process.
fn matched(coordination: Coordination) -> Vec<Matched<'static>> {
    let mut rule = Rule::new(Limit::fixed_window(100, Period::from_secs(10)));
    rule.coordination.mode = Some(coordination);
    let node = RuleNode { rule: Some(rule), ..RuleNode::new("tenant", Values::Any) };
    let domain = Domain::new("shop", vec![node]);
    let rules = Box::leak(Box::new(RuleSet::new(&[domain], KeyHasher::random())));
    let matched = |key: u32| {
        let value = Box::leak(format!("tenant-{key:06}").into_boxed_str());
        let entries = [Entry { key: "tenant", value }].into_iter().collect();
        let descriptor = Descriptor { entries, ..Descriptor::default() };
        let request = Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        Matched::new(rules, Box::leak(Box::new(request)))
    };
    (0..KEYS).map(matched).collect()
}

impl Waiting {
    /// Creates the case `name`: a mode, and the hits of each key, after `lone_` for an instance that is alone.
    pub(crate) fn new(name: &str) -> Self {
        let (name, instances) = name.strip_prefix("lone_").map_or((name, INSTANCES), |name| (name, 1));
        let (mode, hits) = name.split_once('_').expect("a mode and a number");
        let mode = Coordination::parse(mode).expect("a coordination mode");
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let settings = CoordinationSettings { max_counters: 10_000, ..CoordinationSettings::default() };
        let (store, clock) = runtime.block_on(async {
            let clock = SimulatedClock::new(Timestamp::from_secs(1_700_000_000));
            let remote = ScriptedStore { clock: clock.clone(), instances };
            let store = Coordinated::new(remote, Arc::new(clock.clone()), settings);
            // until the first heartbeat has returned
            tokio::time::sleep(Duration::from_millis(100)).await;
            (store, clock)
        });
        Self { runtime, store, clock, matched: matched(mode), hits: hits.parse().expect("a number") }
    }

    /// Decides one hit of each key after the other, again and again, and waits until all have expired. Returns the
    /// number of decisions that were no rejections.
    pub(crate) fn run(&self) -> usize {
        let mut admitted = 0;
        self.runtime.block_on(async {
            for _ in 0..self.hits {
                for matched in &self.matched {
                    let decisions =
                        self.store.take(&matched.checks, Scope::Descriptor, self.clock.now()).await;
                    admitted += usize::from(!decisions.expect("a decision")[0].over);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            tokio::time::sleep(AFTERWARDS).await;
        });
        assert_eq!(self.store.counters(), 0, "all have expired");
        admitted
    }
}
