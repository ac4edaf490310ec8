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
    command::{CommandOutcome, Retry},
    connection::{PipelineReply, RedisProtocol, RedisServer},
    request::{NodeBatch, NodeRequest, Route, RoutedRequest},
    resolver::{Resolver, Sentinels},
    settings::{Login, RedisEndpoint, Topology},
};
use crate::transport::{Backoff, ServerState, TransportMetrics, malformed_reply, metrics_of};
use weir_limit::Timestamp;
use weir_observe::Metric;
use weir_store::remote::{CallPriority, RemoteError, StoreNode};

/// The most sends of a command while the cluster is up: redirects may follow each other, and a failover takes a while.
const ROUNDS: usize = 6;

/// The wait before a retry while keys are being moved, or while a replica is still used as a master.
const PAUSE: Duration = Duration::from_millis(10);

/// While the cluster is down.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct RedisServers {
    name: &'static str,
    node: StoreNode,
    endpoint: Arc<RedisEndpoint>,
    nodes: RedisNodes,
    metrics: Arc<TransportMetrics>,
}

enum RedisNodes {
    One(RedisServer),
    Cluster(Arc<Cluster>),
}

pub(super) struct NodeReplies<T> {
    /// The clock of the last server that replied.
    pub(super) now: Option<Timestamp>,
    pub(super) replies: Vec<Result<T, RemoteError>>,
}

// === impl RedisServers ===

impl RedisServers {
    pub(super) fn open(name: &'static str, endpoint: RedisEndpoint, backoff: Backoff) -> Self {
        let endpoint = Arc::new(endpoint);
        let metrics = Arc::new(TransportMetrics::default());
        let one = |resolver| {
            let protocol = RedisProtocol { endpoint: Arc::clone(&endpoint), resolver };
            RedisNodes::One(RedisServer::open(protocol, backoff, Arc::clone(&metrics)))
        };
        let nodes = match endpoint.topology.clone() {
            Topology::Single(address) => one(Resolver::Fixed(address)),
            Topology::Sentinel { master, sentinels, auth: _ } => {
                one(Resolver::Sentinels(Sentinels { master, addresses: sentinels }))
            }
            Topology::Cluster(seeds) => {
                let (endpoint, metrics) = (Arc::clone(&endpoint), Arc::clone(&metrics));
                RedisNodes::Cluster(Cluster::open(endpoint, seeds, backoff, metrics))
            }
        };
        Self { name, node: node(name, ()), endpoint, nodes, metrics }
    }

    /// Requests for one key keep their order. Each server has its own batches, retries and pauses, and delays no other.
    pub(super) async fn run<R: NodeRequest>(
        &self,
        requests: Vec<RoutedRequest<R>>,
        priority: CallPriority,
    ) -> NodeReplies<R::Reply> {
        self.metrics.calls.add(1);
        self.metrics.commands.add(requests.len() as u64);
        let deadline = Instant::now() + self.endpoint.timeout;
        if let RedisNodes::Cluster(cluster) = &self.nodes {
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
            for batch in self.batches(waiting, priority, &mut replies) {
                batches.push(self.exchange(batch, pause, priority, deadline));
            }
            let Some((server, requests, received)) = batches.next().await else { break };
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
        NodeReplies { now, replies }
    }

    pub(super) async fn run_one<R: NodeRequest>(
        &self,
        request: R,
        priority: CallPriority,
    ) -> (Option<Timestamp>, Result<R::Reply, RemoteError>) {
        let NodeReplies { now, replies } = self.run(vec![RoutedRequest::new(0, request)], priority).await;
        (now, replies.into_iter().next().unwrap_or_else(|| Err(malformed_reply())))
    }

    /// Requests that no server is known for get their `replies` at once.
    fn batches<R: NodeRequest>(
        &self,
        requests: Vec<RoutedRequest<R>>,
        priority: CallPriority,
        replies: &mut [Option<Result<R::Reply, RemoteError>>],
    ) -> Vec<NodeBatch<R>> {
        let cost_of = |request: &RoutedRequest<R>| request.request.encoded().cost();
        if let RedisNodes::One(server) = &self.nodes
            && !requests.is_empty()
            && requests.iter().map(cost_of).sum::<usize>() <= server.cost(priority)
        {
            // most calls are like this one, and requests are large to move
            return vec![NodeBatch { server: server.clone(), requests, room: 0 }];
        }
        let mut batches: Vec<NodeBatch<R>> = Vec::new();
        for request in requests {
            let cost = cost_of(&request);
            let server = match self.server(request.request.encoded().key(), &request.route) {
                Ok(server) => server,
                Err(error) => {
                    replies[request.index] = Some(Err(error));
                    continue;
                }
            };
            // only the last batch of a server has room
            let last = batches.iter_mut().rfind(|batch| batch.server.is(&server));
            if let Some(last) = last.filter(|last| last.room >= cost) {
                last.room -= cost;
                last.requests.push(request);
            } else {
                let room = server.cost(priority).saturating_sub(cost);
                batches.push(NodeBatch { server: server.into_owned(), requests: vec![request], room });
            }
        }
        batches
    }

    async fn exchange<R: NodeRequest>(
        &self,
        batch: NodeBatch<R>,
        pause: Duration,
        priority: CallPriority,
        deadline: Instant,
    ) -> (RedisServer, Vec<RoutedRequest<R>>, Result<PipelineReply, RemoteError>) {
        if !pause.is_zero() {
            time::sleep(pause).await;
        }
        let NodeBatch { server, requests, .. } = batch;
        if priority == CallPriority::Decision && R::DECIDES {
            server.record_decision();
        }
        let (mut commands, mut loads) = (Vec::with_capacity(2 * requests.len()), false);
        for request in &requests {
            let load = request.route.load_script && !loads;
            loads |= load;
            request.request.encoded().write(load, request.route.is_asking, &mut commands);
        }
        let received = server.exchange(commands, priority, deadline).await;
        (server, requests, received)
    }

    fn server(&self, key: &str, route: &Route) -> Result<Cow<'_, RedisServer>, RemoteError> {
        match (&self.nodes, &route.server) {
            (RedisNodes::One(server), _) => Ok(Cow::Borrowed(server)),
            (RedisNodes::Cluster(cluster), Some(address)) => cluster.server(address).map(Cow::Owned),
            (RedisNodes::Cluster(cluster), None) => cluster.server_of_key(key).map(Cow::Owned),
        }
    }

    /// A Redis that is not a cluster is one node, whichever server is its master.
    pub(super) fn node(&self, key: impl FnOnce() -> String) -> StoreNode {
        match &self.nodes {
            RedisNodes::One(_) => self.node,
            RedisNodes::Cluster(cluster) => node(self.name, cluster.holder(&key())),
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
        match (retry, &self.nodes) {
            (Retry::LoadScript, _) => route.load_script = true,
            (Retry::OtherWindow(now), _) => request.request.move_to_window(now),
            (Retry::Moved(Some(address)), RedisNodes::Cluster(cluster)) => {
                cluster.moved(key, address.clone());
                route.server = Some(address);
            }
            (Retry::Moved(None), RedisNodes::Cluster(cluster)) => {
                // only a look-up of the slots can tell where the key is
                route.pause = LONGEST_PAUSE.min(PAUSE * (1 << request.attempts.min(8)));
                cluster.refresh();
            }
            (Retry::Ask(address), RedisNodes::Cluster(_)) => {
                route.is_asking = true;
                route.server = Some(address);
            }
            (Retry::Later(_), RedisNodes::Cluster(_)) => route.pause = PAUSE,
            (Retry::ClusterDown(error), RedisNodes::Cluster(cluster)) => {
                // lasts until a replica has taken over, or the servers see each other again
                route.pause = LONGEST_PAUSE.min(PAUSE * (1 << request.attempts.min(8)));
                if Instant::now() + route.pause >= deadline {
                    return Err(RemoteError::Rejected(error));
                }
                cluster.refresh();
            }
            (Retry::ReadOnly(_), RedisNodes::Cluster(cluster)) => {
                server.renew();
                cluster.refresh();
                route.pause = PAUSE;
            }
            (Retry::ReadOnly(error), RedisNodes::One(_)) => {
                // sentinels may report a new master, and a host name may resolve to a new server
                server.renew();
                if !matches!(self.endpoint.topology, Topology::Sentinel { .. }) {
                    return Err(RemoteError::Rejected(error));
                }
                route.pause = PAUSE;
            }
            (Retry::Moved(_) | Retry::Ask(_), RedisNodes::One(_)) => {
                const CLUSTER: &str = "it is part of a cluster; set REDIS_TYPE to CLUSTER";
                return Err(RemoteError::Rejected(CLUSTER.into()));
            }
            (Retry::Later(error) | Retry::ClusterDown(error), RedisNodes::One(_)) => {
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
        match &self.nodes {
            RedisNodes::One(server) => (vec![server.state()], None),
            RedisNodes::Cluster(cluster) => (cluster.states(), cluster.error()),
        }
    }

    pub(super) fn metrics(&self) -> Vec<Metric> {
        let metrics = metrics_of!(&self.metrics, &self.states().0, "redis", "Redis");
        metrics.into_iter().map(|metric| metric.label("redis", self.name)).collect()
    }
}

fn node(name: &str, part: impl Hash) -> StoreNode {
    let mut hasher = DefaultHasher::new();
    (name, part).hash(&mut hasher);
    StoreNode(hasher.finish())
}
