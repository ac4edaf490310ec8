//! One Redis, however many servers it is made of: sends every command to the server that holds its key, and sends again,
//! elsewhere or in another way, what was certainly not carried out.

use std::{
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Cmd, Value};
use tokio::time;

use super::{
    cluster::Cluster,
    encode::{EncodedCommand, Outcome, Retry, nonsense},
    link::{self, Answer, Link, LinkState},
    metrics::RedisMetrics,
    random::RandomGenerator,
    resolver::Resolver,
    settings::{Address, Backoff, Endpoint, Place},
};
use crate::{
    limit::Timestamp,
    observe::Metric,
    store::remote::{RemoteError, StoreNode},
};

/// How often a command may be sent: redirects lead on, and a failover takes its time, but nothing goes on for ever.
const ROUNDS: usize = 6;

/// How long to wait for keys that are on their way, or for a replica to be replaced.
const PAUSE: Duration = Duration::from_millis(10);

/// One Redis.
pub(super) struct Pool {
    name: &'static str,
    /// What there is of it where it is no cluster.
    node: StoreNode,
    endpoint: Arc<Endpoint>,
    servers: Servers,
    metrics: Arc<RedisMetrics>,
}

enum Servers {
    One(Link),
    Cluster(Arc<Cluster>),
}

/// Something that can be sent, and sent again.
pub(super) trait NodeRequest {
    /// What its answer is.
    type Reply;

    /// What goes over the wire.
    fn wire(&self) -> &EncodedCommand;

    /// What came back, to the first of its commands if there are several.
    fn outcome(&self, value: &Value) -> Outcome<Self::Reply>;

    /// Makes it about the window that is open at `now`.
    fn turn_to(&mut self, now: Timestamp);
}

/// What came of some errands.
pub(super) struct Done<T> {
    /// The clock of the server that was the last to answer.
    pub(super) now: Option<Timestamp>,
    /// One for each.
    pub(super) replies: Vec<Result<T, RemoteError>>,
}

/// How an errand that is not done yet is to be sent.
#[derive(Clone, Default)]
struct Way {
    /// With the text of its script.
    load: bool,
    /// To this server, which must be asked for it.
    ask: Option<Address>,
}

/// What goes to one server in one round.
struct Trip {
    link: Link,
    commands: Vec<Cmd>,
    sent: Vec<Sent>,
    /// The text of the script is among the commands: it need not be there twice.
    loads: bool,
}

/// One errand on a trip.
struct Sent {
    errand: usize,
    /// How many commands it has there.
    commands: usize,
    /// Where the answer is that tells: behind one to what asks for it, if that had to be.
    own: usize,
}

// === impl Pool ===

impl Pool {
    /// The Redis of `endpoint`. Connections are made in the background.
    pub(super) fn open(
        name: &'static str,
        endpoint: Endpoint,
        backoff: Backoff,
        draw: &Arc<RandomGenerator>,
    ) -> Self {
        let endpoint = Arc::new(endpoint);
        let metrics = Arc::new(RedisMetrics::default());
        let servers = match (&endpoint.place, Resolver::of(&endpoint.place)) {
            (Place::Cluster(seeds), _) => Servers::Cluster(Cluster::open(
                Arc::clone(&endpoint),
                seeds.clone(),
                backoff,
                Arc::clone(&metrics),
                Arc::clone(draw),
            )),
            (_, Some(resolver)) => Servers::One(Link::open(
                Arc::clone(&endpoint),
                resolver,
                backoff,
                Arc::clone(&metrics),
                Arc::clone(draw),
            )),
            (_, None) => unreachable!("only a cluster has no one server"),
        };
        Self { name, node: node(name, ()), endpoint, servers, metrics }
    }

    /// Runs `errands`, those of one key in their order.
    pub(super) async fn run<E: NodeRequest>(&self, mut errands: Vec<E>) -> Done<E::Reply> {
        self.metrics.calls.add(1);
        self.metrics.commands.add(errands.len() as u64);
        let deadline = Instant::now() + self.endpoint.timeout;
        let late = || RemoteError::TimedOut(link::period(self.endpoint.timeout));
        if let Servers::Cluster(cluster) = &self.servers {
            // without an end to it there is no route, and that is an answer too
            let _ = time::timeout_at(deadline.into(), cluster.ready()).await;
        }
        let mut ways = vec![Way::default(); errands.len()];
        let mut replies: Vec<Option<Result<E::Reply, RemoteError>>> = Vec::new();
        replies.resize_with(errands.len(), || None);
        let mut now = None;
        for round in 1..=ROUNDS {
            let mut pause = false;
            for (trip, answer) in self.send(&errands, &ways, &mut replies) {
                let answered = match time::timeout_at(deadline.into(), answer).await {
                    Ok(Ok(Ok(answered))) => answered,
                    failed => {
                        let error = match failed {
                            Ok(Ok(Err(error))) => error,
                            Ok(_) => RemoteError::Unreachable("the connection broke".into()),
                            Err(_) => late(),
                        };
                        trip.sent.iter().for_each(|sent| replies[sent.errand] = Some(Err(error.clone())));
                        continue;
                    }
                };
                now = now.max(answered.now);
                let mut values = answered.values.as_slice();
                for sent in &trip.sent {
                    let (own, rest) = values.split_at(sent.commands.min(values.len()));
                    values = rest;
                    let errand = &mut errands[sent.errand];
                    let told = own.get(sent.own);
                    match told.map_or_else(|| Outcome::Done(Err(nonsense())), |told| errand.outcome(told)) {
                        Outcome::Done(reply) => replies[sent.errand] = Some(reply),
                        Outcome::Retry(again) => {
                            pause |= matches!(again, Retry::ReadOnly(_) | Retry::Later(_));
                            match self.again(again, errand, &trip.link) {
                                Ok(way) if round < ROUNDS => ways[sent.errand] = way,
                                Ok(_) => replies[sent.errand] = Some(Err(restless())),
                                Err(error) => replies[sent.errand] = Some(Err(error)),
                            }
                        }
                    }
                }
            }
            let left = replies.iter().filter(|reply| reply.is_none()).count();
            if left == 0 {
                break;
            }
            self.metrics.repeated.add(left as u64);
            if pause {
                time::sleep(PAUSE).await;
            }
        }
        let replies: Vec<_> =
            replies.into_iter().map(|reply| reply.unwrap_or_else(|| Err(restless()))).collect();
        replies.iter().filter_map(|reply| reply.as_ref().err()).for_each(|error| self.metrics.error(error));
        Done { now, replies }
    }

    /// Sends all errands that have no reply yet, those for one server together.
    fn send<E: NodeRequest>(
        &self,
        errands: &[E],
        ways: &[Way],
        replies: &mut [Option<Result<E::Reply, RemoteError>>],
    ) -> Vec<(Trip, Answer)> {
        let mut trips: Vec<Trip> = Vec::new();
        for (i, reply) in replies.iter_mut().enumerate().filter(|(_, reply)| reply.is_none()) {
            let (wire, way) = (errands[i].wire(), &ways[i]);
            let link = match self.route(wire.key(), way) {
                Ok(link) => link,
                Err(error) => {
                    *reply = Some(Err(error));
                    continue;
                }
            };
            let at = trips.iter().position(|trip| trip.link.is(&link)).unwrap_or_else(|| {
                trips.push(Trip { link, commands: Vec::new(), sent: Vec::new(), loads: false });
                trips.len() - 1
            });
            let trip = &mut trips[at];
            let before = trip.commands.len();
            wire.write(way.load && !trip.loads, way.ask.is_some(), &mut trip.commands);
            trip.loads |= way.load;
            trip.sent.push(Sent {
                errand: i,
                commands: trip.commands.len() - before,
                own: usize::from(way.ask.is_some()),
            });
        }
        let mut sent = Vec::with_capacity(trips.len());
        for mut trip in trips {
            match trip.link.send(std::mem::take(&mut trip.commands)) {
                Ok(answer) => sent.push((trip, answer)),
                Err(error) => {
                    trip.sent.iter().for_each(|sent| replies[sent.errand] = Some(Err(error.clone())));
                }
            }
        }
        sent
    }

    fn route(&self, key: &str, way: &Way) -> Result<Link, RemoteError> {
        match (&self.servers, &way.ask) {
            (Servers::One(link), _) => Ok(link.clone()),
            (Servers::Cluster(cluster), Some(address)) => Ok(cluster.link(address)),
            (Servers::Cluster(cluster), None) => cluster.route(key),
        }
    }

    /// What holds the key that `key` makes. A Redis that is no cluster is one node, whichever server is its master.
    pub(super) fn node(&self, key: impl FnOnce() -> String) -> StoreNode {
        match &self.servers {
            Servers::One(_) => self.node,
            Servers::Cluster(cluster) => node(self.name, cluster.holder(&key())),
        }
    }

    /// How to send `errand` once more, which came back from the server at the other end of `link`.
    fn again<E: NodeRequest>(&self, again: Retry, errand: &mut E, link: &Link) -> Result<Way, RemoteError> {
        let mut way = Way::default();
        match (again, &self.servers) {
            (Retry::Load, _) => way.load = true,
            (Retry::Window(now), _) => errand.turn_to(now),
            (Retry::Moved(address), Servers::Cluster(cluster)) => cluster.moved(errand.wire().key(), address),
            (Retry::LimitCheck(address), Servers::Cluster(_)) => way.ask = Some(address),
            (Retry::Later(_), Servers::Cluster(_)) => {}
            (Retry::ReadOnly(_), Servers::Cluster(cluster)) => {
                link.renew();
                cluster.moved(errand.wire().key(), None);
            }
            (Retry::ReadOnly(said), Servers::One(_)) => {
                // sentinels may know another master by now; one address may lead to another server some day
                link.renew();
                if !matches!(self.endpoint.place, Place::Sentinel { .. }) {
                    return Err(RemoteError::Rejected(said));
                }
            }
            (Retry::Moved(_) | Retry::LimitCheck(_), Servers::One(_)) => {
                const CLUSTER: &str = "it is part of a cluster; set REDIS_TYPE to CLUSTER";
                return Err(RemoteError::Rejected(CLUSTER.into()));
            }
            (Retry::Later(said), Servers::One(_)) => return Err(RemoteError::Rejected(said)),
        }
        Ok(way)
    }

    /// How the ways to its servers are, and what went wrong when they were looked for.
    pub(super) fn states(&self) -> (Vec<LinkState>, Option<String>) {
        match &self.servers {
            Servers::One(link) => (vec![link.state()], None),
            Servers::Cluster(cluster) => (cluster.states(), cluster.error()),
        }
    }

    /// What is counted about it.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        self.metrics.metrics(self.name, &self.states().0)
    }
}

/// The part of the Redis called `name` that is told from its others by `part`.
fn node(name: &str, part: impl Hash) -> StoreNode {
    let mut hasher = DefaultHasher::new();
    (name, part).hash(&mut hasher);
    StoreNode(hasher.finish())
}

/// What is sent from one server to the next, and never carried out.
fn restless() -> RemoteError {
    RemoteError::Rejected(format!("it was sent {ROUNDS} times, and not carried out"))
}
