use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    Network, Random, SimulatedBoard, SimulatedClock, SimulatedPlaces, SimulatedPools, SimulatedServer,
    network::Fate,
};
use weir_limit::{Capabilities, Period, PlaceSet, SharedStore, Timestamp};
use weir_store::{
    board::{BoardPost, BoardReply},
    clock::Clock as _,
    place_command::{PlaceCommand, PlaceReplies},
    pool_command::{PoolCommand, PoolReply},
    remote::{Command, Heartbeat, Members, Remote, RemoteError, Replies, Reply, Target},
};

/// A store that instances share. Copies are the same store.
#[derive(Clone, Debug)]
pub struct SimulatedStore(Arc<SimulatedStoreState>);

#[derive(Debug)]
struct SimulatedStoreState {
    clock: SimulatedClock,
    server: Mutex<SimulatedServer>,
    pools: Mutex<SimulatedPools>,
    places: Mutex<SimulatedPlaces>,
    board: Mutex<SimulatedBoard>,
    condition: watch::Sender<Condition>,
    capabilities: Capabilities,
    random: Mutex<Random>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Up,
    /// It does not listen: new calls fail at once, and calls in flight are lost.
    Down,
    /// It accepts calls but carries them out only when it is up again.
    Frozen,
    /// It rejects every command, as a read-only replica does.
    Rejecting,
}

/// One instance's handle of the store. Copies share the connection.
#[derive(Clone, Debug)]
pub struct SimulatedRemote {
    store: SimulatedStore,
    connection: Arc<SimulatedConnection>,
}

#[derive(Debug)]
struct SimulatedConnection {
    network: Mutex<Network>,
    random: Mutex<Random>,
    calls_out: mpsc::UnboundedSender<SimulatedMessage>,
    partitioned: AtomicBool,
    calls: AtomicU64,
    commands: AtomicU64,
    heartbeats: AtomicU64,
}

struct SimulatedMessage {
    call: SimulatedCall,
    arrives: Instant,
    fate: Fate,
    reply: oneshot::Sender<Result<CallReply, RemoteError>>,
}

enum SimulatedCall {
    Commands(Vec<Command>),
    Heartbeat(OwnedHeartbeat),
    Post(OwnedPost),
    Pool(PoolCommand),
    Places(Vec<PlaceCommand>),
}

struct OwnedHeartbeat {
    instance: String,
    ttl: Period,
}

struct OwnedPost {
    instance: String,
    summary: Option<Vec<u8>>,
    note: Option<Vec<u8>>,
    read_until: Timestamp,
    reads_summaries: bool,
}

enum CallReply {
    Board(BoardReply),
    Replies(Replies),
    Members(Members),
    Pool(PoolReply),
    Places(PlaceReplies),
}

// === impl SimulatedStore ===

impl SimulatedStore {
    pub fn new(clock: SimulatedClock, seed: u64) -> Self {
        Self::with_capabilities(clock, seed, Capabilities::All)
    }

    pub fn with_capabilities(clock: SimulatedClock, seed: u64, capabilities: Capabilities) -> Self {
        Self(Arc::new(SimulatedStoreState {
            clock,
            capabilities,
            server: Mutex::default(),
            pools: Mutex::default(),
            places: Mutex::default(),
            board: Mutex::default(),
            condition: watch::Sender::new(Condition::Up),
            random: Mutex::new(Random::new(seed)),
        }))
    }

    /// Returns a handle for another instance. Must be called within a tokio runtime.
    pub fn connect(&self, network: Network) -> SimulatedRemote {
        let (sender, messages) = mpsc::unbounded_channel();
        let connection = Arc::new(SimulatedConnection {
            network: Mutex::new(network),
            random: Mutex::new(self.0.random.lock().fork()),
            calls_out: sender,
            partitioned: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            heartbeats: AtomicU64::new(0),
        });
        tokio::spawn(self.clone().deliver(messages, Arc::downgrade(&connection)));
        SimulatedRemote { store: self.clone(), connection }
    }

    pub fn set(&self, condition: Condition) {
        self.0.condition.send_replace(condition);
    }

    pub fn condition(&self) -> Condition {
        *self.0.condition.borrow()
    }

    pub fn clock(&self) -> &SimulatedClock {
        &self.0.clock
    }

    /// Removes everything, as `FLUSHALL` does.
    pub fn flush(&self) {
        self.0.server.lock().flush();
        self.0.pools.lock().clear();
        self.0.places.lock().clear();
        *self.0.board.lock() = SimulatedBoard::default();
    }

    /// Returns the places that it keeps for `path`.
    #[must_use]
    pub fn places(&self, path: &str) -> PlaceSet {
        self.0.places.lock().of(path)
    }

    /// Records the writes of the last `period` from now on, so that a failover can lose them.
    pub fn keep_writes(&self, period: Period) {
        self.0.server.lock().keep_writes(period);
    }

    /// Loses [recorded](Self::keep_writes) writes of the last `lost`. Returns their hits, which may be taken again.
    pub fn fail_over(&self, lost: Period) -> u64 {
        let now = self.0.clock.now();
        self.0.server.lock().fail_over(lost, now)
    }

    /// Returns the hits that the first tier of `target` counts in the window of `at`.
    pub fn used(&self, target: &Target, at: Timestamp) -> u64 {
        self.0.server.lock().used(target, at)
    }

    pub fn execute(&self, command: &Command) -> Reply {
        let now = self.0.clock.now();
        self.0.server.lock().execute(command, now)
    }

    /// In order unless the network reorders calls. Ends when the handle is dropped and all calls were delivered.
    async fn deliver(
        self,
        mut messages: mpsc::UnboundedReceiver<SimulatedMessage>,
        connection: Weak<SimulatedConnection>,
    ) {
        while let Some(message) = messages.recv().await {
            let arrival = self.clone().arrive(message, connection.clone());
            if connection.upgrade().is_some_and(|connection| connection.network.lock().reorders) {
                tokio::spawn(arrival);
            } else {
                arrival.await;
            }
        }
    }

    async fn arrive(self, message: SimulatedMessage, connection: Weak<SimulatedConnection>) {
        let partitioned = move || {
            connection.upgrade().is_some_and(|connection| connection.partitioned.load(Ordering::Relaxed))
        };
        let SimulatedMessage { call, arrives, fate, reply } = message;
        let lost = || RemoteError::Unreachable("the connection broke".into());
        sleep_until(arrives).await;
        if fate.request_lost || partitioned() {
            if fate.noticed {
                let _ = reply.send(Err(lost()));
            }
            return;
        }
        let mut condition = self.0.condition.subscribe();
        // does not fail: the store holds the sender
        let _ = condition.wait_for(|condition| *condition != Condition::Frozen).await;
        let result = match self.condition() {
            Condition::Down => Err(lost()),
            condition => self.execute_call(call, condition),
        };
        tokio::spawn(async move {
            sleep(fate.reply_time).await;
            // a caller that has given up has dropped its receiver
            if !fate.reply_lost && !partitioned() {
                let _ = reply.send(result);
            } else if fate.noticed {
                let _ = reply.send(Err(lost()));
            }
        });
    }

    fn execute_call(&self, call: SimulatedCall, condition: Condition) -> Result<CallReply, RemoteError> {
        let now = self.0.clock.now();
        let mut server = self.0.server.lock();
        Ok(match call {
            SimulatedCall::Heartbeat(OwnedHeartbeat { instance, ttl }) => {
                let heartbeat = Heartbeat { instance: &instance, ttl };
                CallReply::Members(server.heartbeat(heartbeat, now))
            }
            SimulatedCall::Commands(commands) => {
                let replies = commands.iter().map(|command| match condition {
                    Condition::Rejecting => Err(RemoteError::Rejected("it is read-only".into())),
                    _ if !can_carry_out(self.0.capabilities, command) => {
                        Err(RemoteError::Rejected("it cannot carry out this operation".into()))
                    }
                    _ => Ok(server.execute(command, now)),
                });
                let replies = replies.collect();
                CallReply::Replies(Replies { now, replies })
            }
            SimulatedCall::Post(_) | SimulatedCall::Pool(_) | SimulatedCall::Places(_)
                if condition == Condition::Rejecting =>
            {
                return Err(RemoteError::Rejected("it is read-only".into()));
            }
            SimulatedCall::Post(OwnedPost { instance, summary, note, read_until, reads_summaries }) => {
                let (instance, summary, note) = (&*instance, summary.as_deref(), note.as_deref());
                let post = BoardPost { instance, summary, note, read_until, reads_summaries };
                CallReply::Board(self.0.board.lock().execute(&post, now))
            }
            SimulatedCall::Pool(command) => {
                CallReply::Pool(PoolReply { now, outcome: self.0.pools.lock().execute(command, now) })
            }
            SimulatedCall::Places(commands) => {
                let mut places = self.0.places.lock();
                let replies = commands.iter().map(|command| Ok(places.execute(command, now))).collect();
                CallReply::Places(PlaceReplies { now, replies })
            }
        })
    }
}

// === impl SimulatedRemote ===

impl SimulatedRemote {
    pub fn set_network(&self, network: Network) {
        *self.connection.network.lock() = network;
    }

    /// Disconnects it from the store, or reconnects it. While disconnected, calls are lost without notice and time out.
    pub fn partition(&self, partitioned: bool) {
        self.connection.partitioned.store(partitioned, Ordering::Relaxed);
    }

    pub const fn store(&self) -> &SimulatedStore {
        &self.store
    }

    /// Returns the number of calls so far, without heartbeats.
    pub fn calls(&self) -> u64 {
        self.connection.calls.load(Ordering::Relaxed)
    }

    pub fn commands(&self) -> u64 {
        self.connection.commands.load(Ordering::Relaxed)
    }

    pub fn heartbeats(&self) -> u64 {
        self.connection.heartbeats.load(Ordering::Relaxed)
    }

    async fn call_store(&self, call: SimulatedCall) -> Result<CallReply, RemoteError> {
        let network = *self.connection.network.lock();
        let fate = network.fate(&mut self.connection.random.lock());
        if self.store.condition() == Condition::Down {
            return Err(RemoteError::NotSent("connection refused".into()));
        }
        let now = Instant::now();
        let (reply, receiver) = oneshot::channel();
        // does not fail: the receiver lives as long as this handle
        let _ = self.connection.calls_out.send(SimulatedMessage {
            call,
            arrives: now + fate.request_time,
            fate,
            reply,
        });
        let deadline = now + network.timeout;
        match timeout_at(deadline, receiver).await {
            Ok(Ok(reply)) => reply,
            // the reply was lost
            Ok(Err(_)) => {
                sleep_until(deadline).await;
                Err(timed_out(network.timeout))
            }
            Err(_) => Err(timed_out(network.timeout)),
        }
    }
}

/// A store of single fixed windows grants no more than the fewest hits that are of use.
fn can_carry_out(capabilities: Capabilities, Command { target, exchange, .. }: &Command) -> bool {
    let is_known =
        exchange.lease.is_none_or(|lease| exchange.reports.is_empty() && lease.least == lease.want);
    capabilities.count(&target.tiers) && (capabilities == Capabilities::All || is_known)
}

fn timed_out(timeout: Duration) -> RemoteError {
    RemoteError::TimedOut(Period::from_nanos(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)))
}

fn wrong_kind() -> RemoteError {
    RemoteError::Unreachable("its reply is of the wrong kind".into())
}

impl Remote for SimulatedRemote {
    fn shared_store(&self) -> SharedStore {
        SharedStore { capabilities: self.store.0.capabilities, ..SharedStore::REDIS }
    }

    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.connection.calls.fetch_add(1, Ordering::Relaxed);
        self.connection.commands.fetch_add(commands.len() as u64, Ordering::Relaxed);
        match self.call_store(SimulatedCall::Commands(commands)).await? {
            CallReply::Replies(replies) => Ok(replies),
            _ => Err(wrong_kind()),
        }
    }

    async fn heartbeat(&self, heartbeat: Heartbeat<'_>) -> Result<Members, RemoteError> {
        self.connection.heartbeats.fetch_add(1, Ordering::Relaxed);
        let Heartbeat { instance, ttl } = heartbeat;
        let heartbeat = OwnedHeartbeat { instance: instance.to_owned(), ttl };
        match self.call_store(SimulatedCall::Heartbeat(heartbeat)).await? {
            CallReply::Members(members) => Ok(members),
            _ => Err(wrong_kind()),
        }
    }

    fn has_board(&self) -> bool {
        self.store.0.capabilities == Capabilities::All
    }

    async fn post(&self, post: BoardPost<'_>) -> Result<BoardReply, RemoteError> {
        let BoardPost { instance, summary, note, read_until, reads_summaries } = post;
        let (summary, note) = (summary.map(<[u8]>::to_vec), note.map(<[u8]>::to_vec));
        let post = OwnedPost { instance: instance.to_owned(), summary, note, read_until, reads_summaries };
        match self.call_store(SimulatedCall::Post(post)).await? {
            CallReply::Board(reply) => Ok(reply),
            _ => Err(wrong_kind()),
        }
    }

    async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        self.connection.calls.fetch_add(1, Ordering::Relaxed);
        self.connection.commands.fetch_add(1, Ordering::Relaxed);
        match self.call_store(SimulatedCall::Pool(command)).await? {
            CallReply::Pool(reply) => Ok(reply),
            _ => Err(wrong_kind()),
        }
    }

    async fn call_places(&self, commands: Vec<PlaceCommand>) -> Result<PlaceReplies, RemoteError> {
        self.connection.calls.fetch_add(1, Ordering::Relaxed);
        self.connection.commands.fetch_add(commands.len() as u64, Ordering::Relaxed);
        match self.call_store(SimulatedCall::Places(commands)).await? {
            CallReply::Places(replies) => Ok(replies),
            _ => Err(wrong_kind()),
        }
    }
}
