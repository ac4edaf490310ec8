//! A cluster: which server holds which slot, kept up to date in the background.

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
    connect,
    link::{Link, LinkState},
    metrics::RedisMetrics,
    random::RandomGenerator,
    resolver::Resolver,
    settings::{Address, Backoff, Endpoint},
    slot::{self, SLOTS},
};
use crate::store::remote::RemoteError;

/// How often the slots are looked up while all is well.
const LOOK: Duration = Duration::from_secs(5);

/// How often they are while it is not, and never more often.
const HURRY: Duration = Duration::from_millis(200);

/// The servers of a cluster.
pub(super) struct Cluster {
    endpoint: Arc<Endpoint>,
    seeds: Vec<Address>,
    backoff: Backoff,
    metrics: Arc<RedisMetrics>,
    draw: Arc<RandomGenerator>,
    /// Also those that were only heard of in a redirect.
    links: Mutex<HashMap<Address, Link>>,
    /// None until the first look-up has come to an end.
    map: watch::Sender<Option<Result<Arc<Map>, String>>>,
    /// Told when the map seems to be wrong.
    look: Notify,
}

/// Which server holds which slot.
struct Map {
    masters: Vec<Address>,
    /// For each slot an index into the masters, or one past the last if nobody holds it.
    slots: Box<[u16]>,
}

// === impl Cluster ===

impl Cluster {
    /// The cluster that some of `seeds` belong to. It is looked up at once, in the background.
    pub(super) fn open(
        endpoint: Arc<Endpoint>,
        seeds: Vec<Address>,
        backoff: Backoff,
        metrics: Arc<RedisMetrics>,
        draw: Arc<RandomGenerator>,
    ) -> Arc<Self> {
        let cluster = Arc::new(Self {
            endpoint,
            seeds,
            backoff,
            metrics,
            draw,
            links: Mutex::default(),
            map: watch::Sender::new(None),
            look: Notify::new(),
        });
        tokio::spawn(follow(Arc::downgrade(&cluster)));
        cluster
    }

    /// Waits until the first look-up has come to an end.
    pub(super) async fn ready(&self) {
        // the sender is this cluster's own
        let _ = self.map.subscribe().wait_for(Option::is_some).await;
    }

    /// The way to the server that holds `key`.
    pub(super) fn route(&self, key: &str) -> Result<Link, RemoteError> {
        let map = self.map.borrow().clone();
        let map = map
            .unwrap_or_else(|| Err("the slots of the cluster are not known yet".into()))
            .map_err(RemoteError::NotSent)?;
        let slot = slot::slot(key.as_bytes());
        match map.holder(slot) {
            Some(address) => Ok(self.link(address)),
            None => Err(RemoteError::NotSent(format!("no server of the cluster holds slot {slot}"))),
        }
    }

    /// The server that holds `key`, if that is known.
    pub(super) fn holder(&self, key: &str) -> Option<Address> {
        self.map.borrow().as_ref()?.as_ref().ok()?.holder(slot::slot(key.as_bytes())).cloned()
    }

    /// The way to the server at `address`.
    pub(super) fn link(&self, address: &Address) -> Link {
        let open = || {
            Link::open(
                Arc::clone(&self.endpoint),
                Resolver::At(address.clone()),
                self.backoff,
                Arc::clone(&self.metrics),
                Arc::clone(&self.draw),
            )
        };
        self.links.lock().entry(address.clone()).or_insert_with(open).clone()
    }

    /// Notes that the slot of `key` is held by the server at `address`, as a redirect has told, or by some other than is
    /// known.
    pub(super) fn moved(&self, key: &str, address: Option<Address>) {
        if let Some(address) = address {
            self.map.send_if_modified(|map| {
                let Some(Ok(map)) = map else { return false };
                *map = Arc::new(map.with(slot::slot(key.as_bytes()), address));
                true
            });
        }
        self.look.notify_one();
    }

    /// How the ways to its servers are.
    pub(super) fn states(&self) -> Vec<LinkState> {
        let mut states: Vec<LinkState> = self.links.lock().values().map(Link::state).collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        states
    }

    /// What went wrong when the slots were looked up last.
    pub(super) fn error(&self) -> Option<String> {
        self.map.borrow().as_ref().and_then(|map| map.as_ref().err().cloned())
    }

    async fn look(&self) {
        let found = self.find().await;
        if let Ok(map) = &found {
            self.links.lock().retain(|address, link| {
                let stays = map.masters.contains(address);
                if !stays {
                    link.leave();
                }
                stays
            });
            // those that are new connect before they are needed
            for master in &map.masters {
                self.link(master);
            }
        }
        self.map.send_modify(|map| match (found, &map) {
            // an old map is better than none
            (Err(error), Some(Ok(_))) => tracing::debug!(%error, "cannot look up the slots of the cluster"),
            (found, _) => *map = Some(found.map(Arc::new)),
        });
    }

    /// LimitChecks one server after the other: those that are known, then those that the settings name.
    async fn find(&self) -> Result<Map, String> {
        let known: Vec<(Address, Link)> = {
            let links = self.links.lock();
            links.iter().map(|(address, link)| (address.clone(), link.clone())).collect()
        };
        let mut errors = Vec::new();
        for (address, link) in known.into_iter().filter(|(_, link)| link.state().connected) {
            let asked = async {
                let answer = link.send(vec![command()]).map_err(|error| error.to_string())?;
                let answered = answer.await.map_err(|error| error.to_string())?;
                let answered = answered.map_err(|error| error.to_string())?;
                Map::read(answered.values.first().unwrap_or(&Value::Nil), &address)
            };
            // one that hangs must not keep the others from being asked
            match time::timeout(Duration::from_secs(1), asked).await {
                Ok(Ok(map)) => return Ok(map),
                Ok(Err(error)) => errors.push(format!("{address}: {error}")),
                Err(_) => errors.push(format!("{address}: no answer")),
            }
        }
        for seed in &self.seeds {
            let asked = async {
                let mut connection = connect::connect(&self.endpoint, seed).await?;
                let value: Value = connection.ask(&command()).await?;
                Map::read(&value, seed)
            };
            match time::timeout(self.endpoint.timeout, asked).await {
                Ok(Ok(map)) => return Ok(map),
                Ok(Err(error)) => errors.push(format!("{seed}: {error}")),
                Err(_) => errors.push(format!("{seed}: no answer")),
            }
        }
        Err(errors.join("; "))
    }

    fn is_well(&self) -> bool {
        let known = matches!(&*self.map.borrow(), Some(Ok(_)));
        known && self.links.lock().values().all(|link| link.state().connected)
    }
}

fn command() -> redis::Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// Looks the slots up, again and again, for as long as there is anybody who wants to know.
async fn follow(cluster: Weak<Cluster>) {
    loop {
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.look().await;
        let wait = if cluster.is_well() { LOOK } else { HURRY };
        let begun = time::Instant::now();
        // long waits would keep the cluster alive after everybody has left
        while begun.elapsed() < wait {
            let hurried = time::timeout(HURRY, cluster.look.notified()).await.is_ok();
            if hurried || Arc::strong_count(&cluster) == 1 || !cluster.is_well() {
                break;
            }
        }
        drop(cluster);
        // and a storm of redirects is one change
        time::sleep(HURRY.saturating_sub(begun.elapsed())).await;
    }
}

// === impl Map ===

impl Map {
    /// What `CLUSTER SLOTS` answered to `asked`.
    fn read(value: &Value, asked: &Address) -> Result<Self, String> {
        let read = |value: &Value| -> Option<Vec<(usize, usize, Address)>> {
            let Value::Array(ranges) = value else { return None };
            ranges.iter().map(|range| read_range(range, asked)).collect()
        };
        if let Value::ServerError(error) = value {
            return Err(format!("{} {}", error.code(), error.details().unwrap_or_default()));
        }
        let ranges = read(value).ok_or("it does not tell its slots in a way that is known")?;
        if ranges.is_empty() {
            return Err("it is in a cluster that holds no slots".into());
        }
        let mut map = Self { masters: Vec::new(), slots: vec![u16::MAX; SLOTS.into()].into() };
        for (first, last, address) in ranges {
            let master = map.master(address);
            map.slots[first..=last].fill(master);
        }
        Ok(map)
    }

    /// The master that holds `slot`.
    fn holder(&self, slot: u16) -> Option<&Address> {
        self.masters.get(usize::from(self.slots[usize::from(slot)]))
    }

    /// This map with `slot` at `address`.
    fn with(&self, slot: u16, address: Address) -> Self {
        let mut map = Self { masters: self.masters.clone(), slots: self.slots.clone() };
        map.slots[usize::from(slot)] = map.master(address);
        map
    }

    /// The index of the master at `address`, which may be new.
    fn master(&mut self, address: Address) -> u16 {
        let index = self.masters.iter().position(|master| *master == address).unwrap_or_else(|| {
            self.masters.push(address);
            self.masters.len() - 1
        });
        // a cluster has at most as many masters as slots
        u16::try_from(index).unwrap_or(u16::MAX)
    }
}

/// The first and the last slot of a range, and who holds it.
fn read_range(range: &Value, asked: &Address) -> Option<(usize, usize, Address)> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else { return None };
    let (first, last): (usize, usize) = (number(first)?, number(last)?);
    let host: Option<String> = redis::from_redis_value(master.first()?.clone()).ok()?;
    let port = u16::try_from(number(master.get(1)?)?).ok()?;
    let host = match (host, asked) {
        (Some(host), _) if !host.is_empty() && host != "?" => host,
        // it does not know its own name: it is where it was asked
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
    fn slots_are_read() {
        let asked = Address::tcp("asked", 1);
        let host = |name: &str| Value::BulkString(name.as_bytes().to_vec());
        let slots = Value::Array(vec![
            range(0, 99, host("a"), 7000),
            range(100, 16_000, host(""), 7001),
            range(16_001, 16_001, Value::Nil, 7002),
        ]);
        let map = Map::read(&slots, &asked).expect("it is in order");
        let at = |slot: usize| map.masters.get(usize::from(map.slots[slot])).cloned();
        assert_eq!(at(99), Some(Address::tcp("a", 7000)));
        assert_eq!(at(100), Some(Address::tcp("asked", 7001)));
        assert_eq!(at(16_001), Some(Address::tcp("asked", 7002)));
        assert_eq!(at(16_002), None);
        let map = map.with(99, Address::tcp("b", 7003));
        assert_eq!(map.masters[usize::from(map.slots[99])], Address::tcp("b", 7003));
    }

    #[test]
    fn what_is_no_cluster_is_told() {
        let asked = Address::tcp("asked", 1);
        for value in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![range(5, 4, Value::Nil, 1)]),
            Value::Array(vec![range(0, 16_384, Value::Nil, 1)]),
        ] {
            assert!(Map::read(&value, &asked).is_err(), "{value:?}");
        }
    }
}
