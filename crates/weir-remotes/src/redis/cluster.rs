//! A Redis cluster: a map from slots to servers, kept up to date in the background.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::{Notify, watch},
    time,
};

use super::{
    connection::{self, RedisProtocol, RedisServer},
    resolver::Resolver,
    settings::{Login, RedisEndpoint},
    slot_map::{MAX_MASTERS, SlotMap, slot},
};
use crate::transport::{Backoff, ServerState, TransportMetrics};
use weir_net::Address;
use weir_store::remote::{CallPriority, RemoteError};

/// The longest wait for a known server, and for all seeds while a map is known. Then the first look-up counts as failed,
/// although it goes on.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// Known servers that one look-up asks at most.
const MAX_ASKED: usize = 3;

const MAX_SERVERS: usize = MAX_MASTERS + 100;

/// Between two look-ups while every server is connected.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest interval, and the first one while the map is unknown or a server is not connected; and the longest in
/// that state, since a replica may take over at any time.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

pub(super) struct Cluster {
    endpoint: Arc<RedisEndpoint>,
    seeds: Vec<Address>,
    backoff: Backoff,
    metrics: Arc<TransportMetrics>,
    servers: Mutex<HashMap<Address, RedisServer>>,
    /// None until the first look-up has ended, or takes long.
    map: watch::Sender<Option<Result<Arc<SlotMap>, String>>>,
    refresh: Notify,
}

// === impl Cluster ===

impl Cluster {
    pub(super) fn open(
        endpoint: Arc<RedisEndpoint>,
        seeds: Vec<Address>,
        backoff: Backoff,
        metrics: Arc<TransportMetrics>,
    ) -> Arc<Self> {
        let cluster = Arc::new(Self {
            endpoint,
            seeds,
            backoff,
            metrics,
            servers: Mutex::default(),
            map: watch::Sender::new(None),
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
        let slot = slot(key.as_bytes());
        match map.holder(slot) {
            Some(address) => self.server(address),
            None => Err(RemoteError::NotSent(format!("no server of the cluster holds slot {slot}"))),
        }
    }

    pub(super) fn holder(&self, key: &str) -> Option<Address> {
        self.map.borrow().as_ref()?.as_ref().ok()?.holder(slot(key.as_bytes())).cloned()
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

    /// The key is at `address`, as a redirect says. Look-ups correct what servers that redirect to each other change.
    pub(super) fn moved(&self, key: &str, address: Address) {
        self.map.send_if_modified(|map| {
            let Some(Ok(map)) = map else { return false };
            let Some(redirected) = map.redirected(slot(key.as_bytes()), address) else { return false };
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
        self.map.borrow().as_ref()?.as_ref().err().cloned()
    }

    async fn look_up(&self) {
        let map = match self.find().await {
            Ok(map) => map,
            Err(error) => return self.fail(error),
        };
        self.servers.lock().retain(|address, server| {
            let is_master = map.masters.contains(address);
            if !is_master {
                server.close();
            }
            is_master
        });
        // connect to new masters before a request needs them
        for master in &map.masters {
            // there is room: a map has fewer
            let _ = self.server(master);
        }
        self.map.send_replace(Some(Ok(Arc::new(map))));
    }

    /// Keeps a known map, which is better than none.
    fn fail(&self, error: String) {
        if self.is_known() {
            tracing::debug!(%error, "cannot look up the slots of the cluster");
        } else {
            self.map.send_replace(Some(Err(error)));
        }
    }

    fn is_known(&self) -> bool {
        matches!(&*self.map.borrow(), Some(Ok(_)))
    }

    /// The map of a connected server, or else of a seed. Each look-up begins with another server, since one may be out of
    /// date, or cut off from the others.
    async fn find(&self) -> Result<SlotMap, String> {
        let servers = self.servers.lock().clone();
        let mut known: Vec<_> = servers.into_iter().filter(|(_, server)| server.state().connected).collect();
        fastrand::shuffle(&mut known);
        let mut errors = Vec::new();
        for (address, server) in known.iter().take(MAX_ASKED) {
            let deadline = Instant::now() + QUERY_TIMEOUT;
            let reply = server.exchange(vec![command()], CallPriority::Decision, deadline).await;
            let map = reply
                .map_err(|error| error.to_string())
                .and_then(|reply| SlotMap::parse(reply.values.first().unwrap_or(&Value::Nil), address));
            match map {
                Ok(map) => return Ok(map),
                Err(error) => errors.push(format!("{address}: {error}")),
            }
        }
        self.ask_seeds(errors).await
    }

    /// The first map.
    async fn ask_seeds(&self, mut errors: Vec<String>) -> Result<SlotMap, String> {
        let mut silent: Vec<&Address> = self.seeds.iter().collect();
        let asked = self.seeds.iter().map(async |seed| (seed, self.ask_seed(seed).await));
        let mut asked: FuturesUnordered<_> = asked.collect();
        loop {
            match time::timeout(QUERY_TIMEOUT, asked.next()).await {
                Ok(Some((_, Ok(map)))) => return Ok(map),
                Ok(Some((seed, Err(error)))) => {
                    silent.retain(|other| *other != seed);
                    errors.push(format!("{seed}: {error}"));
                }
                Ok(None) => return Err(connection::cut(&errors.join("; "))),
                Err(_) => {
                    let silent = silent.iter().map(|seed| format!("{seed}: no reply yet"));
                    let all: Vec<String> = errors.iter().cloned().chain(silent).collect();
                    let error = connection::cut(&all.join("; "));
                    if self.is_known() {
                        return Err(error);
                    }
                    self.fail(error);
                }
            }
        }
    }

    async fn ask_seed(&self, seed: &Address) -> Result<SlotMap, String> {
        let mut connection = connection::connect_without_scripts(&self.endpoint, seed, Login::Server).await?;
        let value: Value = connection.query(&command()).await?;
        SlotMap::parse(&value, seed).map_err(|error| self.endpoint.with_login(error, Login::Server))
    }

    fn is_healthy(&self) -> bool {
        self.is_known() && self.servers.lock().values().all(|server| server.state().connected)
    }
}

fn command() -> redis::Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

async fn keep_up_to_date(cluster: Weak<Cluster>) {
    let mut retry = RETRY_INTERVAL;
    loop {
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.look_up().await;
        let was_healthy = cluster.is_healthy();
        let wait = if was_healthy { REFRESH_INTERVAL } else { retry };
        retry = if was_healthy { RETRY_INTERVAL } else { (2 * retry).min(LONGEST_RETRY) };
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
