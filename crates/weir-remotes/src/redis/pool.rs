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
    protocol::{PipelineReply, RedisProtocol, RedisServer},
    request::{ExchangedBatch, NodeBatch, NodeRequest, Route, RoutedRequest},
    resolver::Resolver,
    settings::{Login, RedisEndpoint, Topology},
};
use crate::transport::{Backoff, REDIS, RandomGenerator, ServerState, TransportMetrics};
use weir_limit::Timestamp;
use weir_observe::Metric;
use weir_store::remote::{RemoteError, StoreNode, Urgency};

/// The most sends of a command while the cluster is up: redirects may follow each other, and a failover takes a while.
const ROUNDS: usize = 6;

/// The wait before a retry while keys are being moved, or while a replica is still used as a master.
const PAUSE: Duration = Duration::from_millis(10);

/// While the cluster is down.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct ServerPool {
    name: &'static str,
    node: StoreNode,
    endpoint: Arc<RedisEndpoint>,
    servers: PoolServers,
    metrics: Arc<TransportMetrics>,
}

enum PoolServers {
    One(RedisServer),
    Cluster(Arc<Cluster>),
}

pub(super) struct PoolReplies<T> {
    /// The clock of the last server that replied.
    pub(super) now: Option<Timestamp>,
    pub(super) replies: Vec<Result<T, RemoteError>>,
}

// === impl ServerPool ===

impl ServerPool {
    pub(super) fn open(
        name: &'static str,
        endpoint: RedisEndpoint,
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
            (_, Some(resolver)) => PoolServers::One(RedisServer::open(
                RedisProtocol { endpoint: Arc::clone(&endpoint), resolver },
                backoff,
                Arc::clone(&metrics),
                Arc::clone(random),
            )),
            (_, None) => unreachable!("every Redis that is not a cluster has a resolver"),
        };
        Self { name, node: node(name, ()), endpoint, servers, metrics }
    }

    /// Requests for one key keep their order. Each server has its own batches, retries and pauses, and delays no other.
    pub(super) async fn run<R: NodeRequest>(
        &self,
        requests: Vec<RoutedRequest<R>>,
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
        let mut waiting = requests;
        loop {
            let pause = waiting.iter().map(|request| request.route.pause).max().unwrap_or_default();
            for batch in self.batches(waiting, urgency, &mut replies) {
                batches.push(self.exchange(batch, pause, urgency, deadline));
            }
            let Some(ExchangedBatch { server, requests, received }) = batches.next().await else { break };
            waiting = Vec::new();
            let mut values = received.map(|received| {
                now = now.max(received.now);
                received.values.into_iter()
            });
            for mut request in requests {
                let outcome = match &mut values {
                    Ok(values) => request.take_outcome(values),
                    Err(error) => CommandOutcome::Done(Err(error.clone())),
                };
                let retry = match outcome {
                    CommandOutcome::Done(reply) => {
                        replies[request.index] = Some(reply);
                        continue;
                    }
                    CommandOutcome::Retry(retry) => retry,
                };
                match self.route_for_retry(retry, &mut request, &server, deadline) {
                    Ok(()) => waiting.push(request),
                    Err(error) => replies[request.index] = Some(Err(error)),
                }
            }
            self.metrics.retries.add(waiting.len() as u64);
        }
        let reply = |reply: Option<Result<_, RemoteError>>| {
            let reply = reply.unwrap_or_else(|| Err(malformed_reply()));
            reply.map_err(|error| match error {
                RemoteError::Rejected(text) => {
                    RemoteError::Rejected(self.endpoint.with_login(text, Login::Server))
                }
                error => error,
            })
        };
        let replies: Vec<_> = replies.into_iter().map(reply).collect();
        replies.iter().filter_map(|reply| reply.as_ref().err()).for_each(|error| self.metrics.error(error));
        PoolReplies { now, replies }
    }

    pub(super) async fn run_one<R: NodeRequest>(
        &self,
        request: R,
        urgency: Urgency,
    ) -> (Option<Timestamp>, Result<R::Reply, RemoteError>) {
        let PoolReplies { now, replies } = self.run(vec![RoutedRequest::new(0, request)], urgency).await;
        (now, replies.into_iter().next().unwrap_or_else(|| Err(malformed_reply())))
    }

    /// Requests that no server is known for get their `replies` at once.
    fn batches<R: NodeRequest>(
        &self,
        requests: Vec<RoutedRequest<R>>,
        urgency: Urgency,
        replies: &mut [Option<Result<R::Reply, RemoteError>>],
    ) -> Vec<NodeBatch<R>> {
        let cost_of = |request: &RoutedRequest<R>| request.request.encoded().cost();
        if let PoolServers::One(server) = &self.servers
            && !requests.is_empty()
            && requests.iter().map(cost_of).sum::<usize>() <= server.cost(urgency)
        {
            // most calls are like this one, and requests are large to move
            return vec![NodeBatch { server: server.clone(), requests, room: 0 }];
        }
        let mut batches: Vec<NodeBatch<R>> = Vec::new();
        // the last batch of each server, which is the only one with room
        let mut open: Vec<usize> = Vec::new();
        for request in requests {
            let cost = cost_of(&request);
            let server = match self.server(request.request.encoded().key(), &request.route) {
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
        let received = self.send(&server, &requests, urgency, deadline).await;
        ExchangedBatch { server, requests, received }
    }

    async fn send<R: NodeRequest>(
        &self,
        server: &RedisServer,
        requests: &[RoutedRequest<R>],
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

    fn server(&self, key: &str, route: &Route) -> Result<Cow<'_, RedisServer>, RemoteError> {
        match (&self.servers, &route.server) {
            (PoolServers::One(server), _) => Ok(Cow::Borrowed(server)),
            (PoolServers::Cluster(cluster), Some(address)) => cluster.server(address).map(Cow::Owned),
            (PoolServers::Cluster(cluster), None) => cluster.server_of_key(key).map(Cow::Owned),
        }
    }

    /// A Redis that is not a cluster is one node, whichever server is its master.
    pub(super) fn node(&self, key: impl FnOnce() -> String) -> StoreNode {
        match &self.servers {
            PoolServers::One(_) => self.node,
            PoolServers::Cluster(cluster) => node(self.name, cluster.holder(&key())),
        }
    }

    fn route_for_retry<R: NodeRequest>(
        &self,
        retry: Retry,
        request: &mut RoutedRequest<R>,
        server: &RedisServer,
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
            (Retry::Moved(None), PoolServers::Cluster(cluster)) => {
                // only a look-up of the slots can tell where the key is
                route.pause = LONGEST_PAUSE.min(PAUSE * (1 << request.attempts.min(8)));
                cluster.refresh();
            }
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

    pub(super) fn states(&self) -> (Vec<ServerState>, Option<String>) {
        match &self.servers {
            PoolServers::One(server) => (vec![server.state()], None),
            PoolServers::Cluster(cluster) => (cluster.states(), cluster.error()),
        }
    }

    pub(super) fn metrics(&self) -> Vec<Metric> {
        let metrics = self.metrics.metrics(&REDIS, &self.states().0);
        metrics.into_iter().map(|metric| metric.label("redis", self.name)).collect()
    }
}

fn node(name: &str, part: impl Hash) -> StoreNode {
    let mut hasher = DefaultHasher::new();
    (name, part).hash(&mut hasher);
    StoreNode(hasher.finish())
}
