//! Tests of the table, in front of a store of two nodes that the test can silence.

// the simulated store is part of it

mod due;
mod kept;
mod outage;

use std::{future::pending, sync::Arc};

use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use super::{CounterTable, sender};
use crate::{
    CoordinationSettings,
    client::{Link, StoreClient, beat_until_left},
    counter::{LocalCounter, Sent, TryKind},
    simulated::{SimulatedClock, SimulatedServer},
    test_tiers::{START, fixed, millis, sliding},
};
use weir_limit::{
    Coordination, CounterKey, Descriptor, Direction, Domain, Entry, Hits, KeyHasher, Limit, LimitCheck,
    Matched, OverLimitPolicy, Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, RuntimeLimit, Tier,
    Timestamp, Values,
};
use weir_store::{
    clock::Clock as _,
    remote::{Command, Exchange, Heartbeat, Members, Remote, RemoteError, Replies, StoreNode, Target},
};

/// A store that replies at once, but for a node that is silent. Each node has every other window of the first tier.
#[derive(Clone)]
struct TwoNodes(Arc<State>);

struct State {
    clock: SimulatedClock,
    server: Mutex<SimulatedServer>,
    silent: Mutex<Option<StoreNode>>,
    instances: Mutex<usize>,
    calls: Mutex<Vec<Vec<Command>>>,
    /// The commands of calls that no decision waits for.
    background: Mutex<Vec<Command>>,
}

impl Remote for TwoNodes {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.0.calls.lock().push(commands.clone());
        let node = self.node(&commands[0].target, commands[0].counted_at());
        if *self.0.silent.lock() == Some(node) {
            return pending().await;
        }
        let now = self.0.clock.now();
        let mut server = self.0.server.lock();
        Ok(Replies {
            now,
            replies: commands.iter().map(|command| Ok(server.execute(command, now))).collect(),
        })
    }

    async fn call_in_background(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.0.background.lock().extend_from_slice(&commands);
        self.call(commands).await
    }

    async fn heartbeat(&self, _heartbeat: Heartbeat<'_>) -> Result<Members, RemoteError> {
        Ok((*self.0.instances.lock()).into())
    }

    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        let period = target.tiers[0].period;
        StoreNode(at.window_end(period).as_nanos() / period.as_nanos() % 2)
    }
}

/// A table of the counters of one rule, without its task.
struct Fixture {
    store: TwoNodes,
    table: Arc<CounterTable<TwoNodes>>,
    rules: RuleSet,
}

impl Fixture {
    fn new(mode: Coordination, tiers: &[Tier]) -> Self {
        Self::with_room(CoordinationSettings::default().max_counters, mode, tiers)
    }

    fn with_room(max_counters: usize, mode: Coordination, tiers: &[Tier]) -> Self {
        let store = TwoNodes(Arc::new(State {
            clock: SimulatedClock::new(START),
            server: Mutex::default(),
            silent: Mutex::default(),
            instances: Mutex::new(1),
            calls: Mutex::default(),
            background: Mutex::default(),
        }));
        let settings = CoordinationSettings { max_counters, ..CoordinationSettings::default() };
        let clock = Arc::new(store.0.clock.clone());
        let client = Arc::new(StoreClient::new(store.clone(), clock, settings));
        let table = Arc::new(CounterTable::new(client));
        let limit = Limit::Tiers { tiers: tiers.into(), over_limit_policy: OverLimitPolicy::Ignore };
        let coordination = RuleCoordination { mode: Some(mode), ..RuleCoordination::default() };
        let rule = Rule { coordination, ..Rule::new(limit) };
        let node = RuleNode { rule: Some(rule), ..RuleNode::new("k", Values::Any) };
        let domain = Domain::new("d", vec![node]);
        Self { store, table, rules: RuleSet::new(&[domain], KeyHasher::with_secret([1, 2])) }
    }

    fn send_heartbeats(&self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        tasks.spawn(beat_until_left(Arc::clone(&self.table.client)));
        tasks
    }

    fn now(&self) -> Timestamp {
        self.store.0.clock.now()
    }

    fn with_check<T>(&self, value: &str, own: Option<&[Tier]>, act: impl FnOnce(&LimitCheck<'_>) -> T) -> T {
        let own = own.map(|own| RuntimeLimit::new(own.into(), OverLimitPolicy::Ignore).expect("it is valid"));
        let entries = [Entry { key: "k", value }].into_iter().collect();
        let descriptor = Descriptor { entries, limit: own.map(Box::new), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        act(&Matched::new(&self.rules, &request).checks[0])
    }

    fn with_counter<T>(&self, value: &str, act: impl FnOnce(&mut LocalCounter) -> T) -> T {
        self.with_check(value, None, |check| {
            self.table.with_counter(check, self.now(), |_, counter| act(counter))
        })
    }

    fn key(&self, value: &str) -> CounterKey {
        self.with_check(value, None, |check| self.table.key_of(check))
    }

    fn count(&self, value: &str, hits: u64) {
        let now = self.now();
        let decision = self.with_counter(value, |counter| {
            counter.count(Direction::Take, OverLimitPolicy::Ignore, Hits(hits), now)
        });
        assert!(!decision.over);
    }

    /// Also holds what is likely to be needed. Returns how many hits are held.
    fn lease(&self, counter: &mut LocalCounter, instances: usize, hits: u64) -> u64 {
        let link = Link { instances, ..self.table.link_now() };
        counter.traffic.open().wants_lease = true;
        let _look = counter.add_try(Hits(0), TryKind::Look, None).expect("there is room");
        let mut composed = counter.composed(&link);
        let (command, sent) = composed.last_mut().expect("a look");
        sent.lease_more(command, hits, Period::default());
        self.deliver(counter, composed, &link)
    }

    fn deliver(&self, counter: &mut LocalCounter, composed: Vec<(Command, Sent)>, link: &Link) -> u64 {
        let mut granted = 0;
        for (command, mut sent) in composed {
            let reply = self.store.0.server.lock().execute(&command, self.now());
            granted += reply.granted;
            counter.apply(&mut sent, Ok((&reply, self.now())), link);
        }
        granted
    }

    fn begin_outage(&self, value: &str) {
        let target = self.with_counter(value, |counter| Arc::clone(&counter.target));
        self.table.client.open_breaker(&target, self.now());
        assert!(self.table.client.is_unavailable_for(&target, self.now()));
    }

    async fn end_outage(&self, value: &str) {
        let target = self.with_counter(value, |counter| Arc::clone(&counter.target));
        let read = Command { target, at: self.now(), exchange: Exchange::read() };
        self.table.client.call(read).await.expect("the node replies");
        assert!(!self.table.client.is_unavailable());
    }

    fn due(&self) -> Vec<CounterKey> {
        let due = self.table.queue.take(usize::MAX, Instant::now()).into_iter();
        let is_due = |(at, key): (u64, CounterKey)| {
            self.table.with_existing(key, None, |entry| entry?.place.take_turn(at).then_some(key))
        };
        due.filter_map(is_due).collect()
    }
}
