//! One Redis, of one server or of many: sends every command to the server that holds its key, and retries commands that were
//! certainly not carried out.

use std::{
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Cmd, Value};
use tokio::time;

use super::{
    cluster::Cluster,
    command::{CommandOutcome, EncodedCommand, Retry, malformed_reply},
    metrics::RedisMetrics,
    random::RandomGenerator,
    resolver::Resolver,
    server::{PendingReply, ServerConnection},
    server_state::ServerState,
    settings::{Address, Backoff, Endpoint, Topology},
    worker,
};
use crate::{
    limit::Timestamp,
    observe::Metric,
    store::remote::{RemoteError, StoreNode},
};

/// The most times that a command is sent. More than two, since redirects may follow each other and a failover takes a while.
const ROUNDS: usize = 6;

/// The wait before a retry while keys are being moved, or while a replica is still used as a master.
const PAUSE: Duration = Duration::from_millis(10);

/// One Redis.
pub(super) struct Pool {
    name: &'static str,
    /// The only node of a Redis that is not a cluster.
    node: StoreNode,
    endpoint: Arc<Endpoint>,
    servers: PoolServers,
    metrics: Arc<RedisMetrics>,
}

enum PoolServers {
    One(ServerConnection),
    Cluster(Arc<Cluster>),
}

/// A request to the node that holds its key, which may be sent more than once.
pub(super) trait NodeRequest {
    /// The type of a reply.
    type Reply;

    /// Returns the commands.
    fn encoded(&self) -> &EncodedCommand;

    /// Interprets the reply to the first of the commands.
    fn outcome(&self, value: &Value) -> CommandOutcome<Self::Reply>;

    /// Changes the request to the window that is open at `now`.
    fn move_to_window(&mut self, now: Timestamp);
}

/// The replies to some requests.
pub(super) struct PoolReplies<T> {
    /// The clock of the last server that replied.
    pub(super) now: Option<Timestamp>,
    /// One for each request.
    pub(super) replies: Vec<Result<T, RemoteError>>,
}

/// How a request is sent next.
#[derive(Clone, Default)]
struct Route {
    /// Whether the text of its script is sent, too.
    load_script: bool,
    /// The server that it is sent to, after `ASKING`. Without one, the slot of its key determines the server.
    asking: Option<Address>,
}

/// The requests that go to one server in one round.
struct NodeBatch {
    server: ServerConnection,
    commands: Vec<Cmd>,
    entries: Vec<BatchEntry>,
    /// Whether the text of a script is among the commands already.
    loads_script: bool,
}

/// One request of a batch.
struct BatchEntry {
    /// The index of the request.
    request: usize,
    /// The number of its commands.
    commands: usize,
    /// The index of the decisive reply among the replies to these commands: 1 after `ASKING`, else 0.
    reply: usize,
}

// === impl Pool ===

impl Pool {
    /// Opens the Redis of `endpoint`. Connections are made in the background.
    pub(super) fn open(
        name: &'static str,
        endpoint: Endpoint,
        backoff: Backoff,
        random: &Arc<RandomGenerator>,
    ) -> Self {
        let endpoint = Arc::new(endpoint);
        let metrics = Arc::new(RedisMetrics::default());
        let servers = match (&endpoint.topology, Resolver::of(&endpoint.topology)) {
            (Topology::Cluster(seeds), _) => PoolServers::Cluster(Cluster::open(
                Arc::clone(&endpoint),
                seeds.clone(),
                backoff,
                Arc::clone(&metrics),
                Arc::clone(random),
            )),
            (_, Some(resolver)) => PoolServers::One(ServerConnection::open(
                Arc::clone(&endpoint),
                resolver,
                backoff,
                Arc::clone(&metrics),
                Arc::clone(random),
            )),
            (_, None) => unreachable!("every Redis that is not a cluster has a resolver"),
        };
        Self { name, node: node(name, ()), endpoint, servers, metrics }
    }

    /// Runs `requests`, those for one key in their order.
    pub(super) async fn run<R: NodeRequest>(&self, mut requests: Vec<R>) -> PoolReplies<R::Reply> {
        self.metrics.calls.add(1);
        self.metrics.commands.add(requests.len() as u64);
        let deadline = Instant::now() + self.endpoint.timeout;
        let timed_out = || RemoteError::TimedOut(worker::period(self.endpoint.timeout));
        if let PoolServers::Cluster(cluster) = &self.servers {
            // if the slots are still unknown at the deadline, routing reports it
            let _ = time::timeout_at(deadline.into(), cluster.ready()).await;
        }
        let mut routes = vec![Route::default(); requests.len()];
        let mut replies: Vec<Option<Result<R::Reply, RemoteError>>> = Vec::new();
        replies.resize_with(requests.len(), || None);
        let mut now = None;
        for round in 1..=ROUNDS {
            let mut pause = false;
            for (batch, pending) in self.send(&requests, &routes, &mut replies) {
                let received = match time::timeout_at(deadline.into(), pending).await {
                    Ok(Ok(Ok(received))) => received,
                    failed => {
                        let error = match failed {
                            Ok(Ok(Err(error))) => error,
                            Ok(_) => RemoteError::Unreachable("the connection broke".into()),
                            Err(_) => timed_out(),
                        };
                        batch
                            .entries
                            .iter()
                            .for_each(|entry| replies[entry.request] = Some(Err(error.clone())));
                        continue;
                    }
                };
                now = now.max(received.now);
                let mut values = received.values.as_slice();
                for entry in &batch.entries {
                    let (own, rest) = values.split_at(entry.commands.min(values.len()));
                    values = rest;
                    let request = &mut requests[entry.request];
                    let value = own.get(entry.reply);
                    match value.map_or_else(
                        || CommandOutcome::Done(Err(malformed_reply())),
                        |value| request.outcome(value),
                    ) {
                        CommandOutcome::Done(reply) => replies[entry.request] = Some(reply),
                        CommandOutcome::Retry(retry) => {
                            pause |= matches!(retry, Retry::ReadOnly(_) | Retry::Later(_));
                            match self.route_for_retry(retry, request, &batch.server) {
                                Ok(route) if round < ROUNDS => routes[entry.request] = route,
                                Ok(_) => replies[entry.request] = Some(Err(too_many_attempts())),
                                Err(error) => replies[entry.request] = Some(Err(error)),
                            }
                        }
                    }
                }
            }
            let left = replies.iter().filter(|reply| reply.is_none()).count();
            if left == 0 {
                break;
            }
            self.metrics.retries.add(left as u64);
            if pause {
                time::sleep(PAUSE).await;
            }
        }
        let replies: Vec<_> =
            replies.into_iter().map(|reply| reply.unwrap_or_else(|| Err(too_many_attempts()))).collect();
        replies.iter().filter_map(|reply| reply.as_ref().err()).for_each(|error| self.metrics.error(error));
        PoolReplies { now, replies }
    }

    /// Sends every request that has no reply yet, those for one server together.
    fn send<R: NodeRequest>(
        &self,
        requests: &[R],
        routes: &[Route],
        replies: &mut [Option<Result<R::Reply, RemoteError>>],
    ) -> Vec<(NodeBatch, PendingReply)> {
        let mut batches: Vec<NodeBatch> = Vec::new();
        for (i, reply) in replies.iter_mut().enumerate().filter(|(_, reply)| reply.is_none()) {
            let (encoded, route) = (requests[i].encoded(), &routes[i]);
            let server = match self.server(encoded.key(), route) {
                Ok(server) => server,
                Err(error) => {
                    *reply = Some(Err(error));
                    continue;
                }
            };
            let at = batches.iter().position(|batch| batch.server.is(&server)).unwrap_or_else(|| {
                batches.push(NodeBatch {
                    server,
                    commands: Vec::new(),
                    entries: Vec::new(),
                    loads_script: false,
                });
                batches.len() - 1
            });
            let batch = &mut batches[at];
            let before = batch.commands.len();
            let load = route.load_script && !batch.loads_script;
            encoded.write(load, route.asking.is_some(), &mut batch.commands);
            batch.loads_script |= route.load_script;
            batch.entries.push(BatchEntry {
                request: i,
                commands: batch.commands.len() - before,
                reply: usize::from(route.asking.is_some()),
            });
        }
        let mut sent = Vec::with_capacity(batches.len());
        for mut batch in batches {
            match batch.server.send(std::mem::take(&mut batch.commands)) {
                Ok(pending) => sent.push((batch, pending)),
                Err(error) => {
                    batch.entries.iter().for_each(|entry| replies[entry.request] = Some(Err(error.clone())));
                }
            }
        }
        sent
    }

    /// Returns the server to send a request for `key` to.
    fn server(&self, key: &str, route: &Route) -> Result<ServerConnection, RemoteError> {
        match (&self.servers, &route.asking) {
            (PoolServers::One(server), _) => Ok(server.clone()),
            (PoolServers::Cluster(cluster), Some(address)) => Ok(cluster.server(address)),
            (PoolServers::Cluster(cluster), None) => cluster.server_of_key(key),
        }
    }

    /// Returns the node that holds the key that `key` returns. A Redis that is not a cluster is one node, whichever server is
    /// its master.
    pub(super) fn node(&self, key: impl FnOnce() -> String) -> StoreNode {
        match &self.servers {
            PoolServers::One(_) => self.node,
            PoolServers::Cluster(cluster) => node(self.name, cluster.holder(&key())),
        }
    }

    /// Decides how to send `request` again after `server` has not carried it out.
    fn route_for_retry<R: NodeRequest>(
        &self,
        retry: Retry,
        request: &mut R,
        server: &ServerConnection,
    ) -> Result<Route, RemoteError> {
        let mut route = Route::default();
        match (retry, &self.servers) {
            (Retry::LoadScript, _) => route.load_script = true,
            (Retry::OtherWindow(now), _) => request.move_to_window(now),
            (Retry::Moved(address), PoolServers::Cluster(cluster)) => {
                cluster.moved(request.encoded().key(), address);
            }
            (Retry::Ask(address), PoolServers::Cluster(_)) => route.asking = Some(address),
            (Retry::Later(_), PoolServers::Cluster(_)) => {}
            (Retry::ReadOnly(_), PoolServers::Cluster(cluster)) => {
                server.renew();
                cluster.moved(request.encoded().key(), None);
            }
            (Retry::ReadOnly(error), PoolServers::One(_)) => {
                // sentinels may report a new master, and a host name may resolve to a new server
                server.renew();
                if !matches!(self.endpoint.topology, Topology::Sentinel { .. }) {
                    return Err(RemoteError::Rejected(error));
                }
            }
            (Retry::Moved(_) | Retry::Ask(_), PoolServers::One(_)) => {
                const CLUSTER: &str = "it is part of a cluster; set REDIS_TYPE to CLUSTER";
                return Err(RemoteError::Rejected(CLUSTER.into()));
            }
            (Retry::Later(error), PoolServers::One(_)) => return Err(RemoteError::Rejected(error)),
        }
        Ok(route)
    }

    /// Returns the states of its connections, and the last error of looking up the servers of a cluster.
    pub(super) fn states(&self) -> (Vec<ServerState>, Option<String>) {
        match &self.servers {
            PoolServers::One(server) => (vec![server.state()], None),
            PoolServers::Cluster(cluster) => (cluster.states(), cluster.error()),
        }
    }

    /// Returns its metrics.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        self.metrics.metrics(self.name, &self.states().0)
    }
}

/// Returns the node that is `part` of the Redis called `name`.
fn node(name: &str, part: impl Hash) -> StoreNode {
    let mut hasher = DefaultHasher::new();
    (name, part).hash(&mut hasher);
    StoreNode(hasher.finish())
}

/// Returns the error for a command that was redirected in every round.
fn too_many_attempts() -> RemoteError {
    RemoteError::Rejected(format!("not carried out after {ROUNDS} attempts"))
}
