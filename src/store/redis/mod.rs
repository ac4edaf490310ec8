//! Redis as the store that instances share: one server, a master that sentinels watch over, or a cluster.
//!
//! A command becomes a `wire`: the reference's `INCRBY` and `EXPIRE` for its rules, one script for everything else. A
//! `pool` sends it to the server that holds its key; the `link` to that server sends all that is waiting in one
//! pipeline. Times are Redis' own; keys are described in `name`, the state of counters in `take.lua`.

mod cluster;
mod connect;
mod encode;
mod link;
mod metrics;
mod name;
mod pool;
mod random;
mod resolver;
mod script;
mod settings;
mod slot;
mod tls;

use std::{fmt, sync::Arc};

pub use self::{
    link::LinkState,
    settings::{Address, Auth, Backoff, Endpoint, Place, RedisSettings, Tls},
    tls::TlsError,
};

use redis::Value;

use self::{
    encode::{CommandPlan, EncodedCommand, Naming, Outcome},
    pool::{NodeRequest, Pool},
    random::RandomGenerator,
};
use super::remote::{Command, Remote, RemoteError, Replies, Reply, StoreNode, Target};
use crate::{
    clock::Clock,
    limit::{Period, Timestamp},
    observe::{Metric, Source},
};

/// Counts in Redis. Connections are made in the background, and made anew when they break; meanwhile calls fail at once.
pub struct RedisRemote {
    main: Pool,
    /// For targets all of whose tiers are of one second.
    per_second: Option<Pool>,
    naming: Arc<Naming>,
    draw: Arc<RandomGenerator>,
    /// None in production: the time is Redis' own.
    clock: Option<Arc<dyn Clock>>,
}

/// How the connections to Redis are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// One for each server that is known; in a cluster none before its slots are.
    pub servers: Vec<LinkState>,
    /// Why the servers of a cluster are not known.
    pub error: Option<String>,
}

/// A command on its way, with what it takes to turn it to another window.
struct Sending<'a> {
    plan: CommandPlan,
    remote: &'a RedisRemote,
}

/// An instance that says that it lives.
struct Beat(EncodedCommand);

// === impl RedisRemote ===

impl RedisRemote {
    /// The Redis of `settings`. It begins to connect at once, in the background: call it where tokio runs.
    ///
    /// # Errors
    ///
    /// If the files that TLS needs are not in order. That nobody listens is no error, for somebody may later.
    pub fn new(settings: RedisSettings) -> Result<Self, TlsError> {
        Self::open(settings, None)
    }

    /// As [`RedisRemote::new`], but counters change as of the time that `clock` shows. Keys expire as of Redis' own all the
    /// same, so they must be made to live long enough; and what is counted without a script, for the rules of the reference,
    /// knows no time but that of its command.
    pub fn with_clock(settings: RedisSettings, clock: Arc<dyn Clock>) -> Result<Self, TlsError> {
        Self::open(settings, Some(clock))
    }

    fn open(settings: RedisSettings, clock: Option<Arc<dyn Clock>>) -> Result<Self, TlsError> {
        let RedisSettings { main, per_second, prefix, jitter_seconds, backoff, health_needs_connection: _ } =
            settings;
        for tls in [&main].into_iter().chain(&per_second).filter_map(|endpoint| endpoint.tls.as_ref()) {
            tls.load()?;
        }
        let draw = Arc::new(RandomGenerator::new());
        Ok(Self {
            main: Pool::open("main", main, backoff, &draw),
            per_second: per_second.map(|endpoint| Pool::open("per_second", endpoint, backoff, &draw)),
            naming: Arc::new(Naming { prefix, jitter_seconds }),
            draw,
            clock,
        })
    }

    /// How its connections are.
    #[must_use]
    pub fn state(&self) -> State {
        let mut state = State { servers: Vec::new(), error: None };
        for pool in [&self.main].into_iter().chain(&self.per_second) {
            let (servers, error) = pool.states();
            state.servers.extend(servers);
            state.error = state.error.or(error);
        }
        state
    }

    fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.now())
    }

    /// The Redis that counts `target`: an index into the pools.
    fn pool_of(&self, target: &Target) -> usize {
        usize::from(self.per_second.is_some() && name::is_per_second(target))
    }

    fn sending(&self, command: Command) -> Sending<'_> {
        let Command { target, at, op } = command;
        let plan = CommandPlan::new(target, op, at, self.now(), &self.naming, self.draw.next());
        Sending { plan, remote: self }
    }
}

/// The clocks of both, where there are two, are taken to agree: [`Replies::now`] is the later one.
impl Remote for RedisRemote {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        if commands.is_empty() {
            return Err(RemoteError::NotSent("there is nothing to be done".into()));
        }
        let mut places = Vec::with_capacity(commands.len());
        let mut sendings = [Vec::new(), Vec::new()];
        for command in commands {
            let pool = self.pool_of(&command.target);
            places.push(pool);
            sendings[pool].push(self.sending(command));
        }
        let [main, per_second] = sendings;
        let (main, per_second) =
            tokio::join!(run(Some(&self.main), main), run(self.per_second.as_ref(), per_second));
        let now = self.now().or(main.now.max(per_second.now));
        let mut replies = [main.replies, per_second.replies].map(Vec::into_iter);
        let replies: Vec<Result<Reply, RemoteError>> =
            places.into_iter().filter_map(|pool| replies[pool].next()).collect();
        match (now, replies.iter().all(Result::is_err)) {
            // nothing was carried out, and no clock was seen: that is a failure of the whole
            (None, true) => {
                let error = replies.into_iter().find_map(Result::err);
                Err(error.unwrap_or_else(encode::nonsense))
            }
            (Some(now), _) => Ok(Replies { now, replies }),
            (None, _) => Err(encode::nonsense()),
        }
    }

    async fn heartbeat(&self, instance: &str, ttl: Period) -> Result<usize, RemoteError> {
        let now = self.now().map(|now| script::micros(now).to_string()).unwrap_or_default();
        let lives = ttl.as_nanos().div_ceil(1_000_000).to_string();
        let arguments = [now, instance.to_owned(), lives].into_iter().map(String::into_bytes).collect();
        let keys = std::iter::once(name::instances(&self.naming.prefix)).collect();
        let wire = EncodedCommand::Run { script: &script::HEARTBEAT, keys, arguments };
        let done = self.main.run(vec![Beat(wire)]).await;
        done.replies.into_iter().next().unwrap_or_else(|| Err(encode::nonsense()))
    }

    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        // any of its keys: they are in one slot
        let key = || name::keys(&self.naming.prefix, target, at).swap_remove(0);
        match (&self.per_second, self.pool_of(target)) {
            (Some(per_second), 1) => per_second.node(key),
            _ => self.main.node(key),
        }
    }

    fn members_node(&self) -> StoreNode {
        self.main.node(|| name::instances(&self.naming.prefix))
    }
}

async fn run(pool: Option<&Pool>, sendings: Vec<Sending<'_>>) -> pool::Done<Reply> {
    match pool {
        Some(pool) if !sendings.is_empty() => pool.run(sendings).await,
        _ => pool::Done { now: None, replies: Vec::new() },
    }
}

impl Source for RedisRemote {
    fn metrics(&self) -> Vec<Metric> {
        [&self.main].into_iter().chain(&self.per_second).flat_map(Pool::metrics).collect()
    }
}

impl fmt::Debug for RedisRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRemote").field("state", &self.state()).finish_non_exhaustive()
    }
}

// === impl State ===

impl State {
    /// Whether there is a connection to every server.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.error.is_none() && !self.servers.is_empty() && self.servers.iter().all(|server| server.connected)
    }
}

// === errands ===

impl NodeRequest for Sending<'_> {
    type Reply = Reply;

    fn wire(&self) -> &EncodedCommand {
        &self.plan.wire
    }

    fn outcome(&self, value: &Value) -> Outcome<Reply> {
        self.plan.outcome(value)
    }

    fn turn_to(&mut self, now: Timestamp) {
        let CommandPlan { target, op, .. } = &self.plan;
        self.plan = self.remote.sending(Command { target: Arc::clone(target), at: now, op: *op }).plan;
    }
}

impl NodeRequest for Beat {
    type Reply = usize;

    fn wire(&self) -> &EncodedCommand {
        &self.0
    }

    fn outcome(&self, value: &Value) -> Outcome<usize> {
        match value {
            Value::Int(count) => Outcome::Done(usize::try_from(*count).map_err(|_| encode::nonsense())),
            Value::ServerError(error) => encode::refusal(error),
            _ => Outcome::Done(Err(encode::nonsense())),
        }
    }

    fn turn_to(&mut self, _now: Timestamp) {}
}
