//! A Redis cluster: a map from slots to servers, kept up to date in the background.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use redis::Value;
use tokio::{
    sync::{Notify, watch},
    time,
};

use super::{
    connection,
    metrics::RedisMetrics,
    random::RandomGenerator,
    resolver::Resolver,
    server::ServerConnection,
    server_state::ServerState,
    settings::{Address, Backoff, Endpoint},
    slot::{self, SLOTS},
};
use crate::store::remote::RemoteError;

/// The interval between two look-ups of the slots while every server is connected.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The interval while the map is unknown or a server is not connected, and the shortest interval between look-ups.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The servers of a cluster.
pub(super) struct Cluster {
    endpoint: Arc<Endpoint>,
    seeds: Vec<Address>,
    backoff: Backoff,
    metrics: Arc<RedisMetrics>,
    random: Arc<RandomGenerator>,
    /// The masters, and servers that are known from a redirect only.
    servers: Mutex<HashMap<Address, ServerConnection>>,
    /// None until the first look-up has ended.
    map: watch::Sender<Option<Result<Arc<SlotMap>, String>>>,
    /// Notified when the map seems to be out of date.
    refresh: Notify,
}

/// The server of each slot.
struct SlotMap {
    masters: Vec<Address>,
    /// For each slot an index into the masters, or `u16::MAX` if no server holds it.
    slots: Box<[u16]>,
}

// === impl Cluster ===

impl Cluster {
    /// Opens the cluster that `seeds` belong to. Its slots are looked up in the background.
    pub(super) fn open(
        endpoint: Arc<Endpoint>,
        seeds: Vec<Address>,
        backoff: Backoff,
        metrics: Arc<RedisMetrics>,
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
                Arc::clone(&self.endpoint),
                Resolver::Fixed(address.clone()),
                self.backoff,
                Arc::clone(&self.metrics),
                Arc::clone(&self.random),
            )
        };
        self.servers.lock().entry(address.clone()).or_insert_with(open).clone()
    }

    /// Updates the map after a redirect: the slot of `key` is at `address`, or at an unknown server if that is none. Also
    /// starts a look-up of all slots.
    pub(super) fn moved(&self, key: &str, address: Option<Address>) {
        if let Some(address) = address {
            self.map.send_if_modified(|map| {
                let Some(Ok(map)) = map else { return false };
                *map = Arc::new(map.with(slot::slot(key.as_bytes()), address));
                true
            });
        }
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
                let is_master = map.masters.contains(address);
                if !is_master {
                    server.close();
                }
                is_master
            });
            // connect to new masters before a request needs them
            for master in &map.masters {
                self.server(master);
            }
        }
        self.map.send_modify(|map| match (found, &map) {
            // keep the old map, which is better than none
            (Err(error), Some(Ok(_))) => tracing::debug!(%error, "cannot look up the slots of the cluster"),
            (found, _) => *map = Some(found.map(Arc::new)),
        });
    }

    /// Queries one server after the other: the connected ones, then the seeds.
    async fn find(&self) -> Result<SlotMap, String> {
        let known: Vec<(Address, ServerConnection)> = {
            let servers = self.servers.lock();
            servers.iter().map(|(address, server)| (address.clone(), server.clone())).collect()
        };
        let mut errors = Vec::new();
        for (address, server) in known.into_iter().filter(|(_, server)| server.state().connected) {
            let query = async {
                let pending = server.send(vec![command()]).map_err(|error| error.to_string())?;
                let reply = pending.await.map_err(|error| error.to_string())?;
                let reply = reply.map_err(|error| error.to_string())?;
                SlotMap::parse(reply.values.first().unwrap_or(&Value::Nil), &address)
            };
            // a server that hangs must not delay the others for long
            match time::timeout(Duration::from_secs(1), query).await {
                Ok(Ok(map)) => return Ok(map),
                Ok(Err(error)) => errors.push(format!("{address}: {error}")),
                Err(_) => errors.push(format!("{address}: no reply")),
            }
        }
        for seed in &self.seeds {
            let query = async {
                let mut connection = connection::connect(&self.endpoint, seed).await?;
                let value: Value = connection.query(&command()).await?;
                SlotMap::parse(&value, seed)
            };
            match time::timeout(self.endpoint.timeout, query).await {
                Ok(Ok(map)) => return Ok(map),
                Ok(Err(error)) => errors.push(format!("{seed}: {error}")),
                Err(_) => errors.push(format!("{seed}: no reply")),
            }
        }
        Err(errors.join("; "))
    }

    fn is_healthy(&self) -> bool {
        let known = matches!(&*self.map.borrow(), Some(Ok(_)));
        known && self.servers.lock().values().all(|server| server.state().connected)
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

// === impl SlotMap ===

impl SlotMap {
    /// Parses the reply of the server at `source` to `CLUSTER SLOTS`.
    fn parse(value: &Value, source: &Address) -> Result<Self, String> {
        let parse = |value: &Value| -> Option<Vec<(usize, usize, Address)>> {
            let Value::Array(ranges) = value else { return None };
            ranges.iter().map(|range| parse_range(range, source)).collect()
        };
        if let Value::ServerError(error) = value {
            return Err(format!("{} {}", error.code(), error.details().unwrap_or_default()));
        }
        let ranges = parse(value).ok_or("its reply to CLUSTER SLOTS is malformed")?;
        if ranges.is_empty() {
            return Err("its cluster holds no slots".into());
        }
        let mut map = Self { masters: Vec::new(), slots: vec![u16::MAX; SLOTS.into()].into() };
        for (first, last, address) in ranges {
            let master = map.master(address);
            map.slots[first..=last].fill(master);
        }
        Ok(map)
    }

    /// Returns the master that holds `slot`.
    fn holder(&self, slot: u16) -> Option<&Address> {
        self.masters.get(usize::from(self.slots[usize::from(slot)]))
    }

    /// Returns this map with `slot` at `address`.
    fn with(&self, slot: u16, address: Address) -> Self {
        let mut map = Self { masters: self.masters.clone(), slots: self.slots.clone() };
        map.slots[usize::from(slot)] = map.master(address);
        map
    }

    /// Returns the index of the master at `address`, and adds it if it is new.
    fn master(&mut self, address: Address) -> u16 {
        let index = self.masters.iter().position(|master| *master == address).unwrap_or_else(|| {
            self.masters.push(address);
            self.masters.len() - 1
        });
        // a cluster has at most as many masters as slots
        u16::try_from(index).unwrap_or(u16::MAX)
    }
}

/// Parses the first and the last slot of a range, and the server that holds it.
fn parse_range(range: &Value, source: &Address) -> Option<(usize, usize, Address)> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else { return None };
    let (first, last): (usize, usize) = (number(first)?, number(last)?);
    let host: Option<String> = redis::from_redis_value(master.first()?.clone()).ok()?;
    let port = u16::try_from(number(master.get(1)?)?).ok()?;
    let host = match (host, source) {
        (Some(host), _) if !host.is_empty() && host != "?" => host,
        // a server that does not know its own host name is at the address that was queried
        (_, Address::Tcp(host, _)) => host.to_string(),
        (_, Address::Unix(_)) => return None,
    };
    (first <= last && last < usize::from(SLOTS)).then(|| (first, last, Address::tcp(&host, port)))
}

fn number(value: &Value) -> Option<usize> {
    redis::from_redis_value(value.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]),
        ])
    }

    #[test]
    fn slots_are_parsed() {
        let source = Address::tcp("source", 1);
        let host = |name: &str| Value::BulkString(name.as_bytes().to_vec());
        let slots = Value::Array(vec![
            range(0, 99, host("a"), 7000),
            range(100, 16_000, host(""), 7001),
            range(16_001, 16_001, Value::Nil, 7002),
        ]);
        let map = SlotMap::parse(&slots, &source).expect("the reply is valid");
        let at = |slot: usize| map.masters.get(usize::from(map.slots[slot])).cloned();
        assert_eq!(at(99), Some(Address::tcp("a", 7000)));
        assert_eq!(at(100), Some(Address::tcp("source", 7001)));
        assert_eq!(at(16_001), Some(Address::tcp("source", 7002)));
        assert_eq!(at(16_002), None);
        let map = map.with(99, Address::tcp("b", 7003));
        assert_eq!(map.masters[usize::from(map.slots[99])], Address::tcp("b", 7003));
    }

    #[test]
    fn malformed_replies_are_errors() {
        let source = Address::tcp("source", 1);
        for value in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![range(5, 4, Value::Nil, 1)]),
            Value::Array(vec![range(0, 16_384, Value::Nil, 1)]),
        ] {
            assert!(SlotMap::parse(&value, &source).is_err(), "{value:?}");
        }
    }
}
