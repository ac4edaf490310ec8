//! Redis as the store that instances share: a single server, a master that sentinels monitor, or a cluster.
//!
//! `command` encodes an operation: `INCRBY` and `EXPIRE`, the commands of envoyproxy/ratelimit, for its rules, and one
//! script for everything else. `servers` sends it to the server that holds its key, with all waiting calls in one
//! pipeline. Times are on Redis' clock. `store::name` describes the keys, and
//! [`encoding`](weir_store::encoding) the state of counters.

mod board;
mod cluster;
mod command;
mod connection;
#[cfg(any(debug_assertions, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod heartbeat;
mod places;
mod pools;
mod reply_guard;
mod request;
mod resolver;
mod script;
mod servers;
mod settings;
mod slot_map;

use std::{fmt, sync::Arc};

pub use self::settings::{Auth, RedisEndpoint, RedisSettings, Topology};
use crate::transport::malformed_reply;
pub use crate::transport::{Backoff, ConnectionStates, ServerState};
pub use weir_net::Address;

use redis::Value;

use self::{
    board::BoardRequest,
    command::{CommandOutcome, EncodedCommand, PreparedCommand},
    heartbeat::HeartbeatRequest,
    places::PlacesRequest,
    pools::ShareRequest,
    request::{NodeRequest, RoutedRequest},
    servers::{NodeReplies, RedisServers},
};
use weir_limit::{Period, Tier, Timestamp};
use weir_net::tls::TlsError;
use weir_observe::{Metric, Source};
use weir_store::{
    board::{BoardPost, BoardReply},
    clock::Clock,
    name::{self, KeySettings},
    place_command::{PlaceCommand, PlaceOp, PlaceReplies},
    pool_command::{PoolCommand, PoolOp, PoolReply},
    remote::{
        CallPriority, Command, Heartbeat, Members, Remote, RemoteError, Replies, Reply, StoreNode, Target,
    },
};

/// The commands of a background call that are encoded before others have a turn.
const ENCODED_AT_ONCE: usize = 64;

/// A store in Redis. It connects in the background, and again after failures; without a connection calls fail at once.
pub struct RedisRemote {
    main: RedisServers,
    per_second: Option<RedisServers>,
    keys: KeySettings,
    /// Held by the background call that is being encoded.
    background: tokio::sync::Mutex<()>,
    /// Only in tests. In production Redis' clock is used.
    clock: Option<Arc<dyn Clock>>,
}

struct CommandRequest<'a> {
    prepared: PreparedCommand,
    remote: &'a RedisRemote,
}

// === impl RedisRemote ===

impl RedisRemote {
    /// Opens the Redis of `settings` and starts to connect in the background. Must be called within a tokio runtime.
    /// Fails if a file that TLS needs is missing or invalid, but not if the server cannot be reached yet.
    pub fn new(settings: RedisSettings) -> Result<Self, TlsError> {
        Self::open(settings, None)
    }

    /// [`RedisRemote::new`], but counters follow `clock`. Keys still expire on Redis' own clock, so the jitter must be
    /// long enough. Commands without a script use only the time of the command.
    pub fn with_clock(settings: RedisSettings, clock: Arc<dyn Clock>) -> Result<Self, TlsError> {
        Self::open(settings, Some(clock))
    }

    fn open(settings: RedisSettings, clock: Option<Arc<dyn Clock>>) -> Result<Self, TlsError> {
        let RedisSettings { main, per_second, keys, backoff, .. } = settings;
        for tls in [&main].into_iter().chain(&per_second).filter_map(|endpoint| endpoint.tls.as_ref()) {
            tls.load(&connection::TLS_NAMES, &[])?;
        }
        Ok(Self {
            main: RedisServers::open("main", main, backoff),
            per_second: per_second.map(|endpoint| RedisServers::open("per_second", endpoint, backoff)),
            keys,
            background: tokio::sync::Mutex::default(),
            clock,
        })
    }

    pub fn state(&self) -> ConnectionStates {
        let mut state = ConnectionStates { servers: Vec::new(), error: None, one_is_enough: false };
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

    /// 1 for the per-second Redis: the tier of a second is counted by another server if it is alone.
    fn pool_of(&self, tiers: &[Tier]) -> usize {
        usize::from(self.per_second.is_some() && name::is_per_second(tiers))
    }

    async fn run(&self, commands: Vec<Command>, priority: CallPriority) -> Result<Replies, RemoteError> {
        if commands.is_empty() {
            return Err(RemoteError::NotSent("no commands".into()));
        }
        let (pools, [main, per_second]) = self.prepare(commands, priority).await;
        let (main, per_second) = tokio::join!(
            run(Some(&self.main), main, priority),
            run(self.per_second.as_ref(), per_second, priority)
        );
        let now = main.now.max(per_second.now);
        let replies = if per_second.replies.is_empty() {
            main.replies
        } else {
            let mut of_pools = [main.replies, per_second.replies].map(Vec::into_iter);
            pools.into_iter().filter_map(|pool| of_pools[pool].next()).collect()
        };
        let (now, replies) = self.dated(NodeReplies { now, replies })?;
        Ok(Replies { now, replies })
    }

    fn dated<T>(
        &self,
        NodeReplies { now, replies }: NodeReplies<T>,
    ) -> Result<(Timestamp, Vec<Result<T, RemoteError>>), RemoteError> {
        match (self.now().or(now), replies.iter().all(Result::is_err)) {
            // no command was carried out and no clock was reported, so the whole call has failed
            (None, true) => {
                let error = replies.into_iter().find_map(Result::err);
                Err(error.unwrap_or_else(malformed_reply))
            }
            (Some(now), _) => Ok((now, replies)),
            (None, _) => Err(malformed_reply()),
        }
    }

    /// How much longer than needed a key is kept.
    fn jitter(&self) -> Period {
        Period::from_secs(fastrand::u64(..) % self.keys.jitter_seconds.max(1))
    }

    /// Background calls take turns, and pause often, because all calls are encoded on one thread.
    async fn prepare(
        &self,
        commands: Vec<Command>,
        priority: CallPriority,
    ) -> (Vec<usize>, [Vec<RoutedRequest<CommandRequest<'_>>>; 2]) {
        let _turn = match priority {
            CallPriority::Background => Some(self.background.lock().await),
            CallPriority::Decision => None,
        };
        let mut pools = Vec::with_capacity(commands.len());
        let mut requests = [Vec::with_capacity(commands.len()), Vec::new()];
        for (i, command) in commands.into_iter().enumerate() {
            if priority == CallPriority::Background && i % ENCODED_AT_ONCE == ENCODED_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            let pool = self.pool_of(&command.target.tiers);
            pools.push(pool);
            let request = RoutedRequest::new(requests[pool].len(), self.request(command));
            requests[pool].push(request);
        }
        (pools, requests)
    }

    fn request(&self, command: Command) -> CommandRequest<'_> {
        let Command { target, at, exchange } = command;
        let prepared = PreparedCommand::new(target, exchange, at, self.now(), &self.keys, fastrand::u64(..));
        CommandRequest { prepared, remote: self }
    }
}

/// With a per-second Redis, the clocks of both are assumed to agree: [`Replies::now`] is the later one.
impl Remote for RedisRemote {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.run(commands, CallPriority::Decision).await
    }

    async fn call_in_background(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.run(commands, CallPriority::Background).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat<'_>) -> Result<Members, RemoteError> {
        let request = HeartbeatRequest::new(&heartbeat, self.now(), &self.keys.prefix);
        self.main.run_one(request, CallPriority::Decision).await.1
    }

    fn has_board(&self) -> bool {
        true
    }

    async fn post(&self, post: BoardPost<'_>) -> Result<BoardReply, RemoteError> {
        let request = BoardRequest::new(&post, self.now(), &self.keys.prefix);
        self.main.run_one(request, CallPriority::Background).await.1
    }

    async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        let request = ShareRequest::new(&command, self.now(), &self.keys, self.jitter());
        let priority = match command.op {
            PoolOp::Lease { .. } => CallPriority::Decision,
            PoolOp::Exchange(_) => CallPriority::Background,
        };
        let pool = self
            .per_second
            .as_ref()
            .filter(|_| self.pool_of(&command.target.tiers) == 1)
            .unwrap_or(&self.main);
        let (now, outcome) = pool.run_one(request, priority).await;
        let outcome = outcome?;
        let now = self.now().or(now).ok_or_else(malformed_reply)?;
        Ok(PoolReply { now, outcome })
    }

    async fn call_places(&self, commands: Vec<PlaceCommand>) -> Result<PlaceReplies, RemoteError> {
        let takes = commands.iter().any(|command| matches!(command.op, PlaceOp::Take { .. }));
        let priority = if takes { CallPriority::Decision } else { CallPriority::Background };
        let requests = commands.iter().enumerate().map(|(i, command)| {
            let request = PlacesRequest::new(command, self.now(), &self.keys.prefix, self.jitter());
            RoutedRequest::new(i, request)
        });
        let (now, replies) = self.dated(self.main.run(requests.collect(), priority).await)?;
        Ok(PlaceReplies { now, replies })
    }

    fn home(&self, tiers: &[Tier]) -> u64 {
        self.pool_of(tiers) as u64
    }

    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        // the first key will do, since all keys of a target are in one slot
        let key = || name::keys(&self.keys, target, at).swap_remove(0);
        match (&self.per_second, self.pool_of(&target.tiers)) {
            (Some(per_second), 1) => per_second.node(key),
            _ => self.main.node(key),
        }
    }

    fn members_node(&self) -> StoreNode {
        self.main.node(|| name::instances(&self.keys.prefix))
    }
}

async fn run(
    pool: Option<&RedisServers>,
    requests: Vec<RoutedRequest<CommandRequest<'_>>>,
    priority: CallPriority,
) -> NodeReplies<Reply> {
    match pool {
        Some(pool) if !requests.is_empty() => pool.run(requests, priority).await,
        _ => NodeReplies { now: None, replies: Vec::new() },
    }
}

impl Source for RedisRemote {
    fn metrics(&self) -> Vec<Metric> {
        [&self.main].into_iter().chain(&self.per_second).flat_map(RedisServers::metrics).collect()
    }
}

impl fmt::Debug for RedisRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRemote").field("state", &self.state()).finish_non_exhaustive()
    }
}

// === impl CommandRequest ===

impl NodeRequest for CommandRequest<'_> {
    type Reply = Reply;

    fn encoded(&self) -> &EncodedCommand {
        &self.prepared.encoded
    }

    fn outcome(&self, value: &Value) -> CommandOutcome<Reply> {
        self.prepared.outcome(value)
    }

    fn move_to_window(&mut self, now: Timestamp) {
        let PreparedCommand { target, exchange, .. } = &self.prepared;
        let command = Command { target: Arc::clone(target), at: now, exchange: exchange.clone() };
        self.prepared = self.remote.request(command).prepared;
    }
}
