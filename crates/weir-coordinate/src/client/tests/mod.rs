//! Tests of the store client, in front of a store that replies as a test says.

mod calls;
mod heartbeats;
mod sender;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{StoreClient, beat_until_left, breaker::OPENS};
use crate::{CoordinationSettings, simulated::SimulatedClock};
use weir_limit::{Coordination, OverLimitPolicy, Period, Tier, Timestamp, algorithm::CounterState};
use weir_store::{
    clock::Clock as _,
    remote::{
        CallPriority, Command, Exchange, Heartbeat, Members, Remote, RemoteError, Replies, Reply, StoreNode,
        Target,
    },
};

const EPOCH: Timestamp = Timestamp::from_secs(1_700_000_000);

/// The round trip of a node for which the test sets none.
const ROUND_TRIP: Duration = Duration::from_millis(2);

/// How far the store's clock is ahead.
const OFFSET: i64 = 5_000_000_000;

/// A store of several nodes. It grants what is taken, and records what it receives.
#[derive(Clone)]
struct Script(Arc<State>);

struct State {
    clock: SimulatedClock,
    nodes: Mutex<BTreeMap<StoreNode, Answer>>,
    /// The node of all counters, if they have moved.
    moved: Mutex<Option<StoreNode>>,
    calls: Mutex<Vec<Call>>,
    heartbeats: Mutex<Vec<(String, Period)>>,
    instances: Mutex<usize>,
}

#[derive(Clone, Debug)]
enum Answer {
    After(Duration),
    Failed(RemoteError),
}

#[derive(Clone, Debug)]
struct Call {
    node: StoreNode,
    commands: Vec<Command>,
    priority: CallPriority,
}

type Client = StoreClient<Script>;

impl<R: Remote> StoreClient<R> {
    pub(crate) async fn call(&self, command: Command) -> Result<Replies, RemoteError> {
        let node = self.remote.node(&command.target, command.at);
        self.send(node, vec![command], CallPriority::Background, || {}).await.0
    }

    pub(crate) fn open_breaker(&self, target: &Arc<Target>, at: Timestamp) {
        self.breaker.record_failures(self.remote.node(target, at), Some(&(Arc::clone(target), at)), OPENS);
    }

    pub(crate) fn is_silent(&self, node: StoreNode) -> bool {
        self.breaker.is_open() && self.breaker.is_open_for(node)
    }
}

impl Script {
    fn new() -> Self {
        Self(Arc::new(State {
            clock: SimulatedClock::new(EPOCH),
            nodes: Mutex::default(),
            moved: Mutex::default(),
            calls: Mutex::default(),
            heartbeats: Mutex::default(),
            instances: Mutex::new(1),
        }))
    }

    fn client(&self) -> Arc<Client> {
        self.client_with(&CoordinationSettings::default())
    }

    fn client_with(&self, settings: &CoordinationSettings) -> Arc<Client> {
        let settings = CoordinationSettings { instance: "here".into(), ..settings.clone() };
        Arc::new(StoreClient::new(self.clone(), Arc::new(self.0.clock.clone()), settings))
    }

    /// Returns a client that sends heartbeats, and what runs them.
    fn start(&self) -> (Arc<Client>, JoinSet<()>) {
        let (client, mut tasks) = (self.client(), JoinSet::new());
        tasks.spawn(beat_until_left(Arc::clone(&client)));
        (client, tasks)
    }

    fn set(&self, node: u64, answer: Answer) {
        self.0.nodes.lock().insert(StoreNode(node), answer);
    }

    fn calls(&self) -> Vec<Call> {
        self.0.calls.lock().clone()
    }

    async fn answer(&self, node: StoreNode) -> Result<(), RemoteError> {
        let answer = self.0.nodes.lock().get(&node).cloned().unwrap_or(Answer::After(ROUND_TRIP));
        match answer {
            Answer::After(time) => {
                sleep(time).await;
                Ok(())
            }
            Answer::Failed(error) => Err(error),
        }
    }

    async fn receive(&self, commands: Vec<Command>, priority: CallPriority) -> Result<Replies, RemoteError> {
        let node = self.node(&commands[0].target, commands[0].at);
        self.0.calls.lock().push(Call { node, commands: commands.clone(), priority });
        self.answer(node).await?;
        let replies = commands.iter().map(|command| {
            let taken = command.exchange.runs.iter().map(|run| run.tries).collect();
            let tiers = command.target.tiers.iter();
            let counters = tiers.map(|tier| CounterState::unused(tier, self.now())).collect();
            Ok(Reply { taken, granted: command.exchange.tried(), counters, ..Reply::default() })
        });
        Ok(Replies { now: self.now(), replies: replies.collect() })
    }

    fn now(&self) -> Timestamp {
        self.0.clock.skewed(OFFSET).now()
    }
}

impl Remote for Script {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.receive(commands, CallPriority::Decision).await
    }

    async fn call_in_background(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.receive(commands, CallPriority::Background).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat<'_>) -> Result<Members, RemoteError> {
        self.0.heartbeats.lock().push((heartbeat.instance.to_owned(), heartbeat.ttl));
        self.answer(self.members_node()).await?;
        let instances = *self.0.instances.lock();
        Ok(Members { now: Some(self.now()), ..instances.into() })
    }

    fn supports(&self, _: &Target, mode: Coordination) -> bool {
        mode != Coordination::Lease
    }

    /// Returns the node whose number the path begins with.
    fn node(&self, target: &Target, _: Timestamp) -> StoreNode {
        let moved = *self.0.moved.lock();
        let named = || target.path.bytes().next().filter(u8::is_ascii_digit).map_or(0, |digit| digit - b'0');
        moved.unwrap_or_else(|| StoreNode(named().into()))
    }
}

fn target(node: u64) -> Arc<Target> {
    let tier = Tier::fixed_window(10, Period::from_secs(60));
    Arc::new(Target {
        path: format!("{node}|k").into(),
        tiers: [tier].into(),
        over_limit_policy: OverLimitPolicy::Ignore,
    })
}

fn take(node: u64, hits: u64) -> Command {
    Command { target: target(node), at: EPOCH, exchange: Exchange::of_try(hits, OverLimitPolicy::Ignore) }
}

fn hits_of(command: &Command) -> u64 {
    command.exchange.tried()
}
