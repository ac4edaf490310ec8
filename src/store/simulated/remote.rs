//! The simulated store, and the handles by which instances reach it.

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

use super::{Network, Random, Server, SimulatedClock, link::Fate};
use crate::{
    clock::Clock as _,
    limit::{Algorithm, Coordination, Period, Timestamp},
    store::remote::{Command, Op, Remote, RemoteError, Replies, Reply, Target},
};

/// A store that instances share. Copies are the same store.
#[derive(Clone, Debug)]
pub struct SimulatedStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: SimulatedClock,
    server: Mutex<Server>,
    condition: watch::Sender<Condition>,
    capabilities: Capabilities,
    /// Where the handles' networks get their chance from.
    random: Mutex<Random>,
}

/// How the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It answers.
    Up,
    /// There is nobody who listens: calls fail at once, and those on their way are lost.
    Down,
    /// It takes calls, but does nothing about them until it is up again; then it carries out all of them.
    Frozen,
    /// It rejects every command, as a read-only replica does.
    Rejecting,
}

/// The operations that the store can carry out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capabilities {
    /// All of them, as Redis can.
    #[default]
    All,
    /// Adding to a single fixed window and taking from it, as Memcached can. Every other command is rejected.
    SingleFixedWindow,
}

/// One instance's way to the store. Copies share the connection.
#[derive(Clone, Debug)]
pub struct SimulatedRemote {
    store: SimulatedStore,
    link: Arc<Link>,
}

#[derive(Debug)]
struct Link {
    network: Mutex<Network>,
    random: Mutex<Random>,
    /// To the store, in the order of sending.
    line: mpsc::UnboundedSender<Message>,
    partitioned: AtomicBool,
    calls: AtomicU64,
    commands: AtomicU64,
    heartbeats: AtomicU64,
}

/// A call on its way.
struct Message {
    asked: Asked,
    arrives: Instant,
    fate: Fate,
    reply: oneshot::Sender<Result<Answer, RemoteError>>,
}

enum Asked {
    Commands(Vec<Command>),
    Heartbeat(String, Period),
}

enum Answer {
    Replies(Replies),
    Members(usize),
}

// === impl SimulatedStore ===

impl SimulatedStore {
    /// An empty store that goes by `clock`. All chance comes from `seed`.
    #[must_use]
    pub fn new(clock: SimulatedClock, seed: u64) -> Self {
        Self::with_capabilities(clock, seed, Capabilities::All)
    }

    /// The same, for a store that can only do what `capabilities` say.
    #[must_use]
    pub fn with_capabilities(clock: SimulatedClock, seed: u64, capabilities: Capabilities) -> Self {
        Self(Arc::new(Shared {
            clock,
            capabilities,
            server: Mutex::default(),
            condition: watch::Sender::new(Condition::Up),
            random: Mutex::new(Random::new(seed)),
        }))
    }

    /// A way for one more instance. Only within a tokio runtime.
    #[must_use]
    pub fn connect(&self, network: Network) -> SimulatedRemote {
        let (sender, messages) = mpsc::unbounded_channel();
        let link = Arc::new(Link {
            network: Mutex::new(network),
            random: Mutex::new(self.0.random.lock().fork()),
            line: sender,
            partitioned: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            heartbeats: AtomicU64::new(0),
        });
        tokio::spawn(self.clone().deliver(messages, Arc::downgrade(&link)));
        SimulatedRemote { store: self.clone(), link }
    }

    /// Changes how it is.
    pub fn set(&self, condition: Condition) {
        self.0.condition.send_replace(condition);
    }

    /// How it is.
    #[must_use]
    pub fn condition(&self) -> Condition {
        *self.0.condition.borrow()
    }

    /// Its clock. Its offset may be changed.
    #[must_use]
    pub fn clock(&self) -> &SimulatedClock {
        &self.0.clock
    }

    /// Forgets everything, as `FLUSHALL` does.
    pub fn flush(&self) {
        self.0.server.lock().flush();
    }

    /// From now on remembers the writes of the last `period`, so that a failover can lose them.
    pub fn keep_writes(&self, period: Period) {
        self.0.server.lock().keep_writes(period);
    }

    /// A replica takes over that has not heard of what was written in the last `lost`, as far as that was
    /// [kept](Self::keep_writes). How many hits were taken then.
    #[must_use]
    pub fn fail_over(&self, lost: Period) -> u64 {
        let now = self.0.clock.now();
        self.0.server.lock().fail_over(lost, now)
    }

    /// The hits that the first tier of `target` counts in the window of `at`.
    #[must_use]
    pub fn used(&self, target: &Target, at: Timestamp) -> u64 {
        self.0.server.lock().used(target, at)
    }

    /// Carries out `command` now, as if it had just arrived.
    #[must_use]
    pub fn execute(&self, command: &Command) -> Reply {
        let now = self.0.clock.now();
        self.0.server.lock().execute(command, now)
    }

    /// Takes what arrives over one connection, in its order unless its network says otherwise. Ends when what was sent
    /// before the instance went is dealt with.
    async fn deliver(self, mut messages: mpsc::UnboundedReceiver<Message>, link: Weak<Link>) {
        while let Some(message) = messages.recv().await {
            let arrival = self.clone().arrive(message, link.clone());
            if link.upgrade().is_some_and(|link| link.network.lock().reorders) {
                tokio::spawn(arrival);
            } else {
                arrival.await;
            }
        }
    }

    async fn arrive(self, message: Message, link: Weak<Link>) {
        let partitioned = move || link.upgrade().is_some_and(|link| link.partitioned.load(Ordering::Relaxed));
        let Message { asked, arrives, fate, reply } = message;
        let lost = || RemoteError::Unreachable("the connection broke".into());
        sleep_until(arrives).await;
        if fate.request_lost || partitioned() {
            if fate.noticed {
                let _ = reply.send(Err(lost()));
            }
            return;
        }
        let mut condition = self.0.condition.subscribe();
        // the store itself holds the other end
        let _ = condition.wait_for(|condition| *condition != Condition::Frozen).await;
        let answer = match self.condition() {
            Condition::Down => Err(lost()),
            condition => Ok(self.answer(asked, condition)),
        };
        tokio::spawn(async move {
            sleep(fate.back).await;
            // the caller may have given up; else it hears, or waits for what never comes
            if !fate.reply_lost && !partitioned() {
                let _ = reply.send(answer);
            } else if fate.noticed {
                let _ = reply.send(Err(lost()));
            }
        });
    }

    fn answer(&self, asked: Asked, condition: Condition) -> Answer {
        let now = self.0.clock.now();
        let mut server = self.0.server.lock();
        match asked {
            Asked::Heartbeat(instance, ttl) => Answer::Members(server.heartbeat(&instance, ttl, now)),
            Asked::Commands(commands) => {
                let replies = commands.iter().map(|command| match condition {
                    Condition::Rejecting => Err(RemoteError::Rejected("it is read-only".into())),
                    _ if !self.0.capabilities.include(command) => {
                        Err(RemoteError::Rejected("it cannot carry out this operation".into()))
                    }
                    _ => Ok(server.execute(command, now)),
                });
                let replies = replies.collect();
                Answer::Replies(Replies { now, replies })
            }
        }
    }
}

// === impl Capabilities ===

impl Capabilities {
    /// Whether `target` can be counted in coordination mode `mode`.
    fn support(self, target: &Target, mode: Coordination) -> bool {
        self.include_target(target) && (self == Self::All || mode != Coordination::Lease)
    }

    /// Whether `command` can be carried out.
    fn include(self, command: &Command) -> bool {
        let known_op = matches!(command.op, Op::Add { .. } | Op::Take { .. });
        self.include_target(&command.target) && (self == Self::All || known_op)
    }

    fn include_target(self, target: &Target) -> bool {
        self == Self::All
            || matches!(target.tiers.as_slice(), [tier] if tier.algorithm == Algorithm::FixedWindow)
    }
}

// === impl SimulatedRemote ===

impl SimulatedRemote {
    /// Changes its network, for calls from now on.
    pub fn set_network(&self, network: Network) {
        *self.link.network.lock() = network;
    }

    /// Cuts it off from the store, or ends that. Nobody is told: calls time out.
    pub fn partition(&self, partitioned: bool) {
        self.link.partitioned.store(partitioned, Ordering::Relaxed);
    }

    /// The store that it leads to.
    #[must_use]
    pub const fn store(&self) -> &SimulatedStore {
        &self.store
    }

    /// Calls so far, without heartbeats.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.link.calls.load(Ordering::Relaxed)
    }

    /// Commands so far.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.link.commands.load(Ordering::Relaxed)
    }

    /// Heartbeats so far.
    #[must_use]
    pub fn heartbeats(&self) -> u64 {
        self.link.heartbeats.load(Ordering::Relaxed)
    }

    async fn ask(&self, asked: Asked) -> Result<Answer, RemoteError> {
        let network = *self.link.network.lock();
        let fate = network.fate(&mut self.link.random.lock());
        if self.store.condition() == Condition::Down {
            return Err(RemoteError::NotSent("nobody listens".into()));
        }
        let now = Instant::now();
        let (reply, answer) = oneshot::channel();
        // it is received as long as this handle lives
        let _ = self.link.line.send(Message { asked, arrives: now + fate.there, fate, reply });
        let deadline = now + network.timeout;
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // nothing is ever going to come
            Ok(Err(_)) => {
                sleep_until(deadline).await;
                Err(timed_out(network.timeout))
            }
            Err(_) => Err(timed_out(network.timeout)),
        }
    }
}

fn timed_out(timeout: Duration) -> RemoteError {
    RemoteError::TimedOut(Period::from_nanos(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)))
}

impl Remote for SimulatedRemote {
    fn supports(&self, target: &Target, mode: Coordination) -> bool {
        self.store.0.capabilities.support(target, mode)
    }

    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.link.calls.fetch_add(1, Ordering::Relaxed);
        self.link.commands.fetch_add(commands.len() as u64, Ordering::Relaxed);
        match self.ask(Asked::Commands(commands)).await? {
            Answer::Replies(replies) => Ok(replies),
            Answer::Members(_) => Err(RemoteError::Unreachable("the answers are mixed up".into())),
        }
    }

    async fn heartbeat(&self, instance: &str, ttl: Period) -> Result<usize, RemoteError> {
        self.link.heartbeats.fetch_add(1, Ordering::Relaxed);
        match self.ask(Asked::Heartbeat(instance.to_owned(), ttl)).await? {
            Answer::Members(members) => Ok(members),
            Answer::Replies(_) => Err(RemoteError::Unreachable("the answers are mixed up".into())),
        }
    }
}
