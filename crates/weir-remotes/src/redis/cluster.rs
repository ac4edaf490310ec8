//! A Redis cluster: a map from slots to servers, kept up to date in the background.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt as _},
};
use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::{Notify, watch},
    time,
};

use super::{
    connection,
    pace::{LookUpPace, RETRY_INTERVAL},
    protocol::{RedisProtocol, RedisServer},
    resolver::Resolver,
    settings::{Login, RedisEndpoint},
    slot,
    slot_map::{MAX_MASTERS, SlotMap},
};
use crate::transport::{Address, Backoff, RandomGenerator, ServerState, TransportMetrics};
use weir_store::remote::{RemoteError, Urgency};

/// The longest wait for a server while a map is known; then the first look-up counts as failed, although it goes on.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// Known servers that one look-up asks, and as many seeds. An odd number has no ties.
const MAX_ASKED: usize = 7;

const MAX_SERVERS: usize = MAX_MASTERS + 100;

/// The time for which a server counts as asked after its connection broke.
const VOTES_FOR: Duration = Duration::from_secs(15);

pub(super) struct Cluster {
    endpoint: Arc<RedisEndpoint>,
    seeds: Vec<Address>,
    backoff: Backoff,
    metrics: Arc<TransportMetrics>,
    random: Arc<RandomGenerator>,
    servers: Mutex<HashMap<Address, RedisServer>>,
    /// None until the first look-up has ended.
    map: watch::Sender<Option<Result<Arc<SlotMap>, String>>>,
    look_ups: AtomicUsize,
    /// The seeds that have not replied to the last look-up, for the error while the first one goes on.
    awaited: Mutex<AwaitedSeeds>,
    refresh: Notify,
}

struct KnownServer {
    address: Address,
    state: ServerState,
    connection: RedisServer,
}

struct AwaitedSeeds {
    since: Instant,
    seeds: Vec<Address>,
    errors: Vec<String>,
}

#[derive(Default)]
struct MapReplies {
    maps: Vec<SlotMap>,
    errors: Vec<String>,
}

// === impl Cluster ===

impl Cluster {
    /// Looks the slots up in the background.
    pub(super) fn open(
        endpoint: Arc<RedisEndpoint>,
        seeds: Vec<Address>,
        backoff: Backoff,
        metrics: Arc<TransportMetrics>,
        random: Arc<RandomGenerator>,
    ) -> Arc<Self> {
        let cluster = Arc::new(Self {
            endpoint,
            seeds,
            backoff,
            metrics,
            random,
            servers: Mutex::default(),
            map: watch::Sender::new(None),
            look_ups: AtomicUsize::new(0),
            awaited: Mutex::new(AwaitedSeeds {
                since: Instant::now(),
                seeds: Vec::new(),
                errors: Vec::new(),
            }),
            refresh: Notify::new(),
        });
        tokio::spawn(keep_up_to_date(Arc::downgrade(&cluster)));
        cluster
    }

    pub(super) async fn ready(&self) {
        // does not fail: the sender lives as long as the cluster
        let _ = self.map.subscribe().wait_for(Option::is_some).await;
    }

    pub(super) fn server_of_key(&self, key: &str) -> Result<RedisServer, RemoteError> {
        let map = self.map.borrow().clone();
        let map = map
            .unwrap_or_else(|| Err("the slots of the cluster are not known yet".into()))
            .map_err(RemoteError::NotSent)?;
        let slot = slot::slot(key.as_bytes());
        match map.holder(slot) {
            Some(address) => self.server(address),
            None => Err(RemoteError::NotSent(format!("no server of the cluster holds slot {slot}"))),
        }
    }

    pub(super) fn holder(&self, key: &str) -> Option<Address> {
        self.map.borrow().as_ref()?.as_ref().ok()?.holder(slot::slot(key.as_bytes())).cloned()
    }

    /// [`RemoteError::NotSent`] if too many servers are open. The next look-up closes those that are no masters.
    pub(super) fn server(&self, address: &Address) -> Result<RedisServer, RemoteError> {
        let open = || {
            RedisServer::open(
                RedisProtocol {
                    endpoint: Arc::clone(&self.endpoint),
                    resolver: Resolver::Fixed(address.clone()),
                },
                self.backoff,
                Arc::clone(&self.metrics),
                Arc::clone(&self.random),
            )
        };
        let mut servers = self.servers.lock();
        if servers.len() >= MAX_SERVERS && !servers.contains_key(address) {
            return Err(RemoteError::NotSent(format!(
                "the cluster redirects to more than {MAX_SERVERS} servers"
            )));
        }
        Ok(servers.entry(address.clone()).or_insert_with(open).clone())
    }

    /// Servers that redirect to each other change the map only once between two look-ups, since the majority decides.
    pub(super) fn moved(&self, key: &str, address: Address) {
        self.map.send_if_modified(|map| {
            let Some(Ok(map)) = map else { return false };
            let Some(redirected) = map.redirected(slot::slot(key.as_bytes()), address) else { return false };
            *map = Arc::new(redirected);
            true
        });
        self.refresh.notify_one();
    }

    pub(super) fn refresh(&self) {
        self.refresh.notify_one();
    }

    pub(super) fn states(&self) -> Vec<ServerState> {
        let mut states: Vec<ServerState> = self.servers.lock().values().map(RedisServer::state).collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        states
    }

    pub(super) fn error(&self) -> Option<String> {
        match &*self.map.borrow() {
            Some(map) => map.as_ref().err().cloned(),
            None => self.awaited.lock().error(),
        }
    }

    async fn look_up(&self, pace: &mut LookUpPace) {
        let found = self.find(pace).await;
        let found = match found {
            // too few servers have replied to change anything
            Ok(None) => return,
            Ok(Some(map)) => Ok(map),
            Err(error) => Err(error),
        };
        if let Ok(map) = &found {
            if self.current().as_deref() != Some(map) {
                pace.record_change();
            }
            self.servers.lock().retain(|address, server| {
                let is_master = map.masters().contains(address);
                if !is_master {
                    server.close();
                }
                is_master
            });
            // connect to new masters before a request needs them
            for master in map.masters() {
                // there is room: a map has fewer
                let _ = self.server(master);
            }
        }
        self.map.send_modify(|map| match (found, &map) {
            // keep the old map, which is better than none
            (Err(error), Some(Ok(_))) => tracing::debug!(%error, "cannot look up the slots of the cluster"),
            (found, _) => *map = Some(found.map(Arc::new)),
        });
    }

    /// Asks seeds unless most known servers have the same map. None if seeds are needed, but were asked a moment ago.
    async fn find(&self, pace: &mut LookUpPace) -> Result<Option<SlotMap>, String> {
        let known = self.asked_servers();
        let mut replies = MapReplies::default();
        join_all(known.iter().map(KnownServer::ask)).await.into_iter().for_each(|reply| replies.add(reply));
        let current = self.current();
        let seeds = self.seeds.iter().filter(|seed| known.iter().all(|server| server.address != **seed));
        let seeds: Vec<Address> = seeds.take(MAX_ASKED).cloned().collect();
        if seeds.is_empty() || SlotMap::is_decided(&replies.maps, known.len()) {
            pace.needs_no_seeds();
        } else if pace.may_ask_seeds(Instant::now()) || current.is_none() {
            // while no server is known nothing can be decided, so even slow seeds are waited for
            let within = if known.is_empty() { self.endpoint.timeout } else { QUERY_TIMEOUT };
            self.ask_seeds(seeds, within, &mut replies).await;
        } else {
            return Ok(None);
        }
        let MapReplies { maps, errors } = replies;
        // seeds that are no longer used need not reply
        let elected = SlotMap::elect(&maps, known.len().max(maps.len()), current.as_deref());
        match elected {
            Some(elected) => elected.bounded().map(Some),
            None => Err(connection::cut(&errors.join("; "))),
        }
    }

    fn current(&self) -> Option<Arc<SlotMap>> {
        self.map.borrow().as_ref().and_then(|map| map.as_ref().ok().cloned())
    }

    fn asked_servers(&self) -> Vec<KnownServer> {
        let servers: Vec<(Address, RedisServer)> = {
            let servers = self.servers.lock();
            servers.iter().map(|(address, server)| (address.clone(), server.clone())).collect()
        };
        let mut known: Vec<KnownServer> = servers
            .into_iter()
            .map(|(address, connection)| KnownServer { address, state: connection.state(), connection })
            .collect();
        // a server that is gone for good has no vote, so that the others can outvote its absence
        known.retain(|server| server.state.connected || server.state.since.elapsed() < VOTES_FOR);
        known.sort_unstable_by(|a, b| a.address.cmp(&b.address));
        // in a large cluster each look-up asks others
        if known.len() > MAX_ASKED {
            let turn = self.look_ups.fetch_add(1, Ordering::Relaxed) * MAX_ASKED;
            let first = turn % known.len();
            known.rotate_left(first);
            known.truncate(MAX_ASKED);
        }
        known
    }

    /// Waits `within`, but only [`QUERY_TIMEOUT`] after the first map.
    async fn ask_seeds(&self, seeds: Vec<Address>, within: Duration, replies: &mut MapReplies) {
        *self.awaited.lock() =
            AwaitedSeeds { since: Instant::now(), seeds: seeds.clone(), errors: replies.errors.clone() };
        let mut asked: FuturesUnordered<_> =
            seeds.iter().map(|seed| async move { (seed, self.ask_seed(seed).await) }).collect();
        let mut deadline = Instant::now() + within;
        while let Ok(Some((seed, reply))) = time::timeout_at(deadline.into(), asked.next()).await {
            if reply.is_ok() {
                deadline = deadline.min(Instant::now() + QUERY_TIMEOUT);
            }
            self.awaited.lock().record(seed, reply.as_ref().err());
            replies.add(reply);
        }
        drop(asked);
        let silent =
            self.awaited.lock().seeds.iter().map(|seed| format!("{seed}: no reply")).collect::<Vec<_>>();
        replies.errors.extend(silent);
    }

    async fn ask_seed(&self, seed: &Address) -> Result<SlotMap, String> {
        let query = async {
            let mut connection =
                connection::connect_without_scripts(&self.endpoint, seed, Login::Server).await?;
            let value: Value = connection.query(&command()).await?;
            SlotMap::parse(&value, seed).map_err(|error| self.endpoint.with_login(error, Login::Server))
        };
        query.await.map_err(|error| format!("{seed}: {error}"))
    }

    fn is_healthy(&self) -> bool {
        let known = matches!(&*self.map.borrow(), Some(Ok(_)));
        known && self.servers.lock().values().all(|server| server.state().connected)
    }
}

// === impl KnownServer ===

impl KnownServer {
    async fn ask(&self) -> Result<SlotMap, String> {
        let Self { address, state, connection } = self;
        if !state.connected {
            return Err(format!("{address}: not connected"));
        }
        let deadline = Instant::now() + QUERY_TIMEOUT;
        let reply = connection.exchange(vec![command()], Urgency::Decision, deadline).await;
        let map = reply
            .map_err(|error| error.to_string())
            .and_then(|reply| SlotMap::parse(reply.values.first().unwrap_or(&Value::Nil), address));
        map.map_err(|error| format!("{address}: {error}"))
    }
}

// === impl AwaitedSeeds ===

impl AwaitedSeeds {
    fn record(&mut self, seed: &Address, error: Option<&String>) {
        self.seeds.retain(|awaited| awaited != seed);
        self.errors.extend(error.cloned());
    }

    fn error(&self) -> Option<String> {
        let silent = self.seeds.iter().map(|seed| format!("{seed}: no reply yet"));
        let errors: Vec<String> = self.errors.iter().cloned().chain(silent).collect();
        let is_long = self.since.elapsed() >= QUERY_TIMEOUT && !errors.is_empty();
        is_long.then(|| connection::cut(&errors.join("; ")))
    }
}

// === impl MapReplies ===

impl MapReplies {
    fn add(&mut self, reply: Result<SlotMap, String>) {
        match reply {
            Ok(map) => self.maps.push(map),
            Err(error) => self.errors.push(error),
        }
    }
}

fn command() -> redis::Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

async fn keep_up_to_date(cluster: Weak<Cluster>) {
    let mut pace = LookUpPace::default();
    loop {
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.look_up(&mut pace).await;
        let was_healthy = cluster.is_healthy();
        let wait = pace.wait(was_healthy, Instant::now());
        let started = time::Instant::now();
        // in short steps, because this task holds a reference and must end when it is the last one
        while started.elapsed() < wait {
            let step = RETRY_INTERVAL.min(wait.saturating_sub(started.elapsed()));
            let notified = time::timeout(step, cluster.refresh.notified()).await.is_ok();
            let is_lost = was_healthy && !cluster.is_healthy();
            if notified || is_lost || Arc::strong_count(&cluster) == 1 {
                break;
            }
        }
        drop(cluster);
        // many redirects in a short time cause one look-up
        time::sleep(RETRY_INTERVAL.saturating_sub(started.elapsed())).await;
    }
}
