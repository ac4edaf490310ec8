//! A Redis cluster: a map from slots to servers, kept up to date in the background.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::{Notify, watch},
    time,
};

use super::{
    connection,
    protocol::{RedisProtocol, ServerConnection},
    resolver::Resolver,
    settings::Endpoint,
    slot,
    slot_map::SlotMap,
};
use crate::store::{
    remote::{RemoteError, Urgency},
    transport::{Address, Backoff, RandomGenerator, ServerState, TransportMetrics},
};

/// The interval between two look-ups of the slots while every server is connected.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The interval while the map is unknown or a server is not connected, and the shortest interval between look-ups.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The longest wait for a server's map while another map is known: one that hangs must not delay the others.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// The known servers that one look-up asks, and as many seeds. An odd number has no ties.
const MAX_ASKED: usize = 7;

/// The time for which a server counts as asked after its connection broke.
const VOTES_FOR: Duration = Duration::from_secs(15);

/// The servers of a cluster.
pub(super) struct Cluster {
    endpoint: Arc<Endpoint>,
    seeds: Vec<Address>,
    backoff: Backoff,
    metrics: Arc<TransportMetrics>,
    random: Arc<RandomGenerator>,
    /// The masters, and servers that are known from a redirect only.
    servers: Mutex<HashMap<Address, ServerConnection>>,
    /// None until the first look-up has ended.
    map: watch::Sender<Option<Result<Arc<SlotMap>, String>>>,
    /// The number of look-ups so far.
    look_ups: AtomicUsize,
    /// Notified when the map seems to be out of date.
    refresh: Notify,
}

// === impl Cluster ===

impl Cluster {
    /// Opens the cluster that `seeds` belong to. Its slots are looked up in the background.
    pub(super) fn open(
        endpoint: Arc<Endpoint>,
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
            refresh: Notify::new(),
        });
        tokio::spawn(keep_up_to_date(Arc::downgrade(&cluster)));
        cluster
    }

    /// Waits until the first look-up has ended.
    pub(super) async fn ready(&self) {
        // does not fail: the sender lives as long as the cluster
        let _ = self.map.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns the server that holds `key`.
    pub(super) fn server_of_key(&self, key: &str) -> Result<ServerConnection, RemoteError> {
        let map = self.map.borrow().clone();
        let map = map
            .unwrap_or_else(|| Err("the slots of the cluster are not known yet".into()))
            .map_err(RemoteError::NotSent)?;
        let slot = slot::slot(key.as_bytes());
        match map.holder(slot) {
            Some(address) => Ok(self.server(address)),
            None => Err(RemoteError::NotSent(format!("no server of the cluster holds slot {slot}"))),
        }
    }

    /// Returns the address of the server that holds `key`, if it is known.
    pub(super) fn holder(&self, key: &str) -> Option<Address> {
        self.map.borrow().as_ref()?.as_ref().ok()?.holder(slot::slot(key.as_bytes())).cloned()
    }

    /// Returns the server at `address`, and opens it if it is new.
    pub(super) fn server(&self, address: &Address) -> ServerConnection {
        let open = || {
            ServerConnection::open(
                RedisProtocol {
                    endpoint: Arc::clone(&self.endpoint),
                    resolver: Resolver::Fixed(address.clone()),
                },
                self.backoff,
                Arc::clone(&self.metrics),
                Arc::clone(&self.random),
            )
        };
        self.servers.lock().entry(address.clone()).or_insert_with(open).clone()
    }

    /// Updates the map after a redirect: the slot of `key` is at `address`. Also starts a look-up of all slots. Servers
    /// that redirect to each other change the map only once between two look-ups, since the majority decides.
    pub(super) fn moved(&self, key: &str, address: Address) {
        self.map.send_if_modified(|map| {
            let Some(Ok(map)) = map else { return false };
            let Some(redirected) = map.redirected(slot::slot(key.as_bytes()), address) else { return false };
            *map = Arc::new(redirected);
            true
        });
        self.refresh.notify_one();
    }

    /// Starts a look-up of all slots.
    pub(super) fn refresh(&self) {
        self.refresh.notify_one();
    }

    /// Returns the states of the connections, by name.
    pub(super) fn states(&self) -> Vec<ServerState> {
        let mut states: Vec<ServerState> =
            self.servers.lock().values().map(ServerConnection::state).collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        states
    }

    /// Returns the error of the last look-up, if no map is known.
    pub(super) fn error(&self) -> Option<String> {
        self.map.borrow().as_ref().and_then(|map| map.as_ref().err().cloned())
    }

    /// Looks up the slots, and opens and closes servers accordingly.
    async fn look_up(&self) {
        let found = self.find().await;
        if let Ok(map) = &found {
            self.servers.lock().retain(|address, server| {
                let is_master = map.masters().contains(address);
                if !is_master {
                    server.close();
                }
                is_master
            });
            // connect to new masters before a request needs them
            for master in map.masters() {
                self.server(master);
            }
        }
        self.map.send_modify(|map| match (found, &map) {
            // keep the old map, which is better than none
            (Err(error), Some(Ok(_))) => tracing::debug!(%error, "cannot look up the slots of the cluster"),
            (found, _) => *map = Some(found.map(Arc::new)),
        });
    }

    /// Asks the known servers and the seeds, all at once, and returns the map that most of them have.
    async fn find(&self) -> Result<SlotMap, String> {
        let known: Vec<(Address, ServerConnection)> = {
            let servers = self.servers.lock();
            servers.iter().map(|(address, server)| (address.clone(), server.clone())).collect()
        };
        let mut known: Vec<_> =
            known.into_iter().map(|(address, server)| (address, server.state(), server)).collect();
        // a server that is gone for good has no vote, so that the others can outvote its absence
        known.retain(|(_, state, _)| state.connected || state.since.elapsed() < VOTES_FOR);
        known.sort_unstable_by(|(a, ..), (b, ..)| a.cmp(b));
        // in a large cluster each look-up asks others
        if known.len() > MAX_ASKED {
            let turn = self.look_ups.fetch_add(1, Ordering::Relaxed) * MAX_ASKED;
            let first = turn % known.len();
            known.rotate_left(first);
            known.truncate(MAX_ASKED);
        }
        let seeds = self.seeds.iter().filter(|seed| known.iter().all(|(address, ..)| address != *seed));
        let seeds: Vec<&Address> = seeds.take(MAX_ASKED).collect();
        let ask_known = known.iter().map(|(address, state, server)| async move {
            if !state.connected {
                return Err(format!("{address}: not connected"));
            }
            let query = async {
                let deadline = Instant::now() + QUERY_TIMEOUT;
                let reply = server.exchange(vec![command()], Urgency::Decision, deadline).await;
                let reply = reply.map_err(|error| error.to_string())?;
                SlotMap::parse(reply.values.first().unwrap_or(&Value::Nil), address)
            };
            answer(address, QUERY_TIMEOUT, query).await
        });
        // without a map nothing can be decided, so even slow seeds are waited for
        let within = if known.is_empty() { self.endpoint.timeout } else { QUERY_TIMEOUT };
        let ask_seeds = seeds.into_iter().map(|seed| async move {
            let query = async {
                let mut connection = connection::connect(&self.endpoint, seed).await?;
                let value: Value = connection.query(&command()).await?;
                SlotMap::parse(&value, seed)
            };
            answer(seed, within, query).await
        });
        let (known, seeds) = tokio::join!(join_all(ask_known), join_all(ask_seeds));
        let voters = known.len();
        let (mut maps, mut errors) = (Vec::new(), Vec::new());
        for reply in known.into_iter().chain(seeds) {
            match reply {
                Ok(map) => maps.push(map),
                Err(error) => errors.push(error),
            }
        }
        let current = self.map.borrow().as_ref().and_then(|map| map.as_ref().ok().cloned());
        // seeds that are no longer used need not reply
        SlotMap::elect(&maps, voters.max(maps.len()), current.as_deref()).ok_or_else(|| errors.join("; "))
    }

    fn is_healthy(&self) -> bool {
        let known = matches!(&*self.map.borrow(), Some(Ok(_)));
        known && self.servers.lock().values().all(|server| server.state().connected)
    }
}

/// Waits for a map of the server at `address`, but no longer than `within`.
async fn answer(
    address: &Address,
    within: Duration,
    query: impl Future<Output = Result<SlotMap, String>>,
) -> Result<SlotMap, String> {
    match time::timeout(within, query).await {
        Ok(map) => map.map_err(|error| format!("{address}: {error}")),
        Err(_) => Err(format!("{address}: no reply")),
    }
}

fn command() -> redis::Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// Looks up the slots repeatedly, until the cluster is dropped.
async fn keep_up_to_date(cluster: Weak<Cluster>) {
    loop {
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.look_up().await;
        let wait = if cluster.is_healthy() { REFRESH_INTERVAL } else { RETRY_INTERVAL };
        let started = time::Instant::now();
        // in short steps, because this task holds a reference and must end when it is the last one
        while started.elapsed() < wait {
            let notified = time::timeout(RETRY_INTERVAL, cluster.refresh.notified()).await.is_ok();
            if notified || Arc::strong_count(&cluster) == 1 || !cluster.is_healthy() {
                break;
            }
        }
        drop(cluster);
        // many redirects in a short time cause one look-up
        time::sleep(RETRY_INTERVAL.saturating_sub(started.elapsed())).await;
    }
}
