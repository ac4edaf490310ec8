//! One Redis, of one server or of many: sends every command to the server that holds its key, and retries commands that
//! were certainly not carried out.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time;

use super::{
    cluster::Cluster,
    command::{CommandOutcome, Retry, malformed_reply},
    protocol::{PipelineReply, RedisProtocol, ServerConnection},
    request::{BoxedRequest, ExchangedBatch, NodeBatch, NodeRequest, Route, RoutedRequest},
    resolver::Resolver,
    settings::{Endpoint, Topology},
};
use crate::{
    limit::Timestamp,
    observe::Metric,
    store::{
        remote::{RemoteError, StoreNode, Urgency},
        transport::{Backoff, REDIS, RandomGenerator, ServerState, TransportMetrics},
    },
};

/// The most times that a command is sent, unless the cluster is down. More than two, since redirects may follow each
/// other and a failover takes a while.
const ROUNDS: usize = 6;

/// The wait before a retry while keys are being moved, or while a replica is still used as a master.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest wait before a retry while the cluster is down.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// One Redis.
pub(super) struct Pool {
    name: &'static str,
    /// The only node of a Redis that is not a cluster.
    node: StoreNode,
    endpoint: Arc<Endpoint>,
    servers: PoolServers,
    metrics: Arc<TransportMetrics>,
}

enum PoolServers {
    One(ServerConnection),
    Cluster(Arc<Cluster>),
}

/// The replies to some requests.
pub(super) struct PoolReplies<T> {
    /// The clock of the last server that replied.
    pub(super) now: Option<Timestamp>,
    /// One for each request.
    pub(super) replies: Vec<Result<T, RemoteError>>,
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
        let metrics = Arc::new(TransportMetrics::default());
        let servers = match (&endpoint.topology, Resolver::of(&endpoint.topology)) {
            (Topology::Cluster(seeds), _) => PoolServers::Cluster(Cluster::open(
                Arc::clone(&endpoint),
                seeds.clone(),
                backoff,
                Arc::clone(&metrics),
                Arc::clone(random),
            )),
            (_, Some(resolver)) => PoolServers::One(ServerConnection::open(
                RedisProtocol { endpoint: Arc::clone(&endpoint), resolver },
                backoff,
                Arc::clone(&metrics),
                Arc::clone(random),
            )),
            (_, None) => unreachable!("every Redis that is not a cluster has a resolver"),
        };
        Self { name, node: node(name, ()), endpoint, servers, metrics }
    }

    /// Runs `requests`, those for one key in their order. Every server has its own batches, retries and pauses, so that
    /// none delays the requests of another.
    pub(super) async fn run<R: NodeRequest>(
        &self,
        requests: Vec<R>,
        urgency: Urgency,
    ) -> PoolReplies<R::Reply> {
        self.metrics.calls.add(1);
        self.metrics.commands.add(requests.len() as u64);
        let deadline = Instant::now() + self.endpoint.timeout;
        if let PoolServers::Cluster(cluster) = &self.servers {
            // if the slots are still unknown at the deadline, routing reports it
            let _ = time::timeout_at(deadline.into(), cluster.ready()).await;
        }
        let mut replies: Vec<Option<Result<R::Reply, RemoteError>>> = Vec::new();
        replies.resize_with(requests.len(), || None);
        let mut now = None;
        let mut batches = FuturesUnordered::new();
        let mut waiting: Vec<_> =
            requests.into_iter().enumerate().map(RoutedRequest::new).map(Box::new).collect();
        loop {
            let pause = waiting.iter().map(|request| request.route.pause).max().unwrap_or_default();
            for batch in self.batches(waiting, urgency, &mut replies) {
                batches.push(self.exchange(batch, pause, urgency, deadline));
            }
            let Some(exchanged) = batches.next().await else { break };
            now = now.max(exchanged.now);
            waiting = Vec::new();
            for (mut request, outcome) in exchanged.outcomes {
                let reply = match outcome {
                    CommandOutcome::Done(reply) => reply,
                    CommandOutcome::Retry(retry) => {
                        match self.route_for_retry(retry, &mut request, &exchanged.server, deadline) {
                            Ok(()) => {
                                waiting.push(request);
                                continue;
                            }
                            Err(error) => Err(error),
                        }
                    }
                };
                replies[request.index] = Some(reply);
            }
            self.metrics.retries.add(waiting.len() as u64);
        }
        let replies: Vec<_> =
            replies.into_iter().map(|reply| reply.unwrap_or_else(|| Err(malformed_reply()))).collect();
        replies.iter().filter_map(|reply| reply.as_ref().err()).for_each(|error| self.metrics.error(error));
        PoolReplies { now, replies }
    }

    /// Divides `requests` into batches for one server each. Those that no server is known for get their `replies` at
    /// once.
    fn batches<R: NodeRequest>(
        &self,
        requests: Vec<BoxedRequest<R>>,
        urgency: Urgency,
        replies: &mut [Option<Result<R::Reply, RemoteError>>],
    ) -> Vec<NodeBatch<R>> {
        let mut batches: Vec<NodeBatch<R>> = Vec::new();
        // the last batch of each server, which is the only one with room
        let mut open: Vec<usize> = Vec::new();
        for request in requests {
            let encoded = request.request.encoded();
            let (cost, server) = (encoded.cost(), self.server(encoded.key(), &request.route));
            let server = match server {
                Ok(server) => server,
                Err(error) => {
                    replies[request.index] = Some(Err(error));
                    continue;
                }
            };
            let last = open.iter_mut().find(|last| batches[**last].server.is(&server));
            match last {
                Some(last) if batches[*last].room >= cost => {
                    let batch = &mut batches[*last];
                    batch.room -= cost;
                    batch.requests.push(request);
                }
                last => {
                    let room = server.cost(urgency).saturating_sub(cost);
                    match last {
                        Some(last) => *last = batches.len(),
                        None => open.push(batches.len()),
                    }
                    batches.push(NodeBatch { server: server.into_owned(), requests: vec![request], room });
                }
            }
        }
        batches
    }

    /// Sends `batch` after `pause`, and waits for the outcomes until `deadline`.
    async fn exchange<R: NodeRequest>(
        &self,
        batch: NodeBatch<R>,
        pause: Duration,
        urgency: Urgency,
        deadline: Instant,
    ) -> ExchangedBatch<R> {
        if !pause.is_zero() {
            time::sleep(pause).await;
        }
        let NodeBatch { server, requests, .. } = batch;
        let received = match self.send(&server, &requests, urgency, deadline).await {
            Ok(received) => received,
            Err(error) => {
                let failed = |request| (request, CommandOutcome::Done(Err(error.clone())));
                let outcomes = requests.into_iter().map(failed).collect();
                return ExchangedBatch { server, now: None, outcomes };
            }
        };
        let mut values = received.values.into_iter();
        let outcomes = requests.into_iter().map(|request| {
            // the reply to `ASKING` goes before the decisive one
            let skipped = usize::from(request.route.is_asking);
            let mut own = values.by_ref().take(request.replies());
            let outcome = own.nth(skipped).map(|value| request.request.outcome(&value));
            own.for_each(drop);
            (request, outcome.unwrap_or_else(|| CommandOutcome::Done(Err(malformed_reply()))))
        });
        ExchangedBatch { outcomes: outcomes.collect(), server, now: received.now }
    }

    /// Sends `requests` to `server` in one pipeline, and waits for the replies until `deadline`.
    async fn send<R: NodeRequest>(
        &self,
        server: &ServerConnection,
        requests: &[BoxedRequest<R>],
        urgency: Urgency,
        deadline: Instant,
    ) -> Result<PipelineReply, RemoteError> {
        if urgency == Urgency::Decision && R::DECIDES {
            server.record_decision();
        }
        let (mut commands, mut loads) = (Vec::with_capacity(2 * requests.len()), false);
        for request in requests {
            let load = request.route.load_script && !loads;
            loads |= load;
            request.request.encoded().write(load, request.route.is_asking, &mut commands);
        }
        server.exchange(commands, urgency, deadline).await
    }

    /// Returns the server to send a request for `key` to.
    fn server(&self, key: &str, route: &Route) -> Result<Cow<'_, ServerConnection>, RemoteError> {
        match (&self.servers, &route.server) {
            (PoolServers::One(server), _) => Ok(Cow::Borrowed(server)),
            (PoolServers::Cluster(cluster), Some(address)) => Ok(Cow::Owned(cluster.server(address))),
            (PoolServers::Cluster(cluster), None) => cluster.server_of_key(key).map(Cow::Owned),
        }
    }

    /// Returns the node that holds the key that `key` returns. A Redis that is not a cluster is one node, whichever
    /// server is its master.
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
        request: &mut RoutedRequest<R>,
        server: &ServerConnection,
        deadline: Instant,
    ) -> Result<(), RemoteError> {
        let mut route = Route::default();
        let is_bounded = !matches!(retry, Retry::ClusterDown(_));
        let key = request.request.encoded().key();
        match (retry, &self.servers) {
            (Retry::LoadScript, _) => route.load_script = true,
            (Retry::OtherWindow(now), _) => request.request.move_to_window(now),
            (Retry::Moved(Some(address)), PoolServers::Cluster(cluster)) => {
                cluster.moved(key, address.clone());
                route.server = Some(address);
            }
            (Retry::Moved(None), PoolServers::Cluster(cluster)) => cluster.refresh(),
            (Retry::Ask(address), PoolServers::Cluster(_)) => {
                route.is_asking = true;
                route.server = Some(address);
            }
            (Retry::Later(_), PoolServers::Cluster(_)) => route.pause = PAUSE,
            (Retry::ClusterDown(error), PoolServers::Cluster(cluster)) => {
                // lasts until a replica has taken over, or the servers see each other again
                route.pause = LONGEST_PAUSE.min(PAUSE * (1 << request.attempts.min(8)));
                if Instant::now() + route.pause >= deadline {
                    return Err(RemoteError::Rejected(error));
                }
                cluster.refresh();
            }
            (Retry::ReadOnly(_), PoolServers::Cluster(cluster)) => {
                server.renew();
                cluster.refresh();
                route.pause = PAUSE;
            }
            (Retry::ReadOnly(error), PoolServers::One(_)) => {
                // sentinels may report a new master, and a host name may resolve to a new server
                server.renew();
                if !matches!(self.endpoint.topology, Topology::Sentinel { .. }) {
                    return Err(RemoteError::Rejected(error));
                }
                route.pause = PAUSE;
            }
            (Retry::Moved(_) | Retry::Ask(_), PoolServers::One(_)) => {
                const CLUSTER: &str = "it is part of a cluster; set REDIS_TYPE to CLUSTER";
                return Err(RemoteError::Rejected(CLUSTER.into()));
            }
            (Retry::Later(error) | Retry::ClusterDown(error), PoolServers::One(_)) => {
                return Err(RemoteError::Rejected(error));
            }
        }
        if is_bounded && request.attempts >= ROUNDS {
            return Err(RemoteError::Rejected(format!("not carried out after {ROUNDS} attempts")));
        }
        request.attempts += 1;
        request.route = route;
        Ok(())
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
        let metrics = self.metrics.metrics(&REDIS, &self.states().0);
        metrics.into_iter().map(|metric| metric.label("redis", self.name)).collect()
    }
}

/// Returns the node that is `part` of the Redis called `name`.
fn node(name: &str, part: impl Hash) -> StoreNode {
    let mut hasher = DefaultHasher::new();
    (name, part).hash(&mut hasher);
    StoreNode(hasher.finish())
}
