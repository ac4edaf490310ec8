//! The servers, and which of them holds a key.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::time::{sleep, timeout};

use super::{
    key,
    protocol::{MemcachedConnection, MetaProtocol},
    settings::{MemcachedSettings, ServerSource},
};
use crate::transport::{Backoff, ConnectionStates, TransportMetrics};
use weir_net::{
    Address,
    dns::{self, DnsName, NameServers, Record, RecordKind},
};
use weir_store::remote::{RemoteError, StoreNode};

/// How often new servers are looked at until they are connected.
const STEP: Duration = Duration::from_millis(10);

pub(super) struct Servers {
    list: ArcSwap<ServerList>,
    settings: MemcachedSettings,
    metrics: Arc<TransportMetrics>,
}

#[derive(Default)]
struct ServerList {
    servers: Vec<(Address, MemcachedConnection)>,
    /// Why there are none, or why the last look-up failed.
    error: Option<String>,
}

// === impl Servers ===

impl Servers {
    /// Must be called within a tokio runtime.
    pub(super) fn open(settings: MemcachedSettings, metrics: Arc<TransportMetrics>) -> Arc<Self> {
        let source = settings.servers.clone();
        let servers = Arc::new(Self { list: ArcSwap::default(), settings, metrics });
        match source {
            ServerSource::List(addresses) => servers.set(servers.connections(addresses)),
            ServerSource::Srv { name, refresh, name_servers } => {
                servers.fail("its servers are not known yet".into());
                tokio::spawn(follow(Arc::downgrade(&servers), name, refresh, name_servers));
            }
        }
        servers
    }

    /// Waits until the new servers are connected or cannot be reached: decisions have the known ones meanwhile, if any.
    async fn replace(&self, addresses: Vec<Address>) {
        let servers = self.connections(addresses);
        if !self.list.load().servers.is_empty() {
            let attempted = async {
                while !servers.iter().all(|(_, server)| server.is_attempted()) {
                    sleep(STEP).await;
                }
            };
            // an attempt takes no longer
            let _ = timeout(self.settings.timeout, attempted).await;
        }
        self.set(servers);
    }

    /// Known ones are kept, others are made in the background.
    fn connections(&self, addresses: Vec<Address>) -> Vec<(Address, MemcachedConnection)> {
        let known = self.list.load();
        let connection = |address: Address| {
            let known = known.servers.iter().find(|(other, _)| *other == address);
            if let Some((_, known)) = known {
                return (address, known.clone());
            }
            let MemcachedSettings { tls, timeout, backoff, .. } = &self.settings;
            let protocol = MetaProtocol { address: address.clone(), tls: tls.clone(), timeout: *timeout };
            let connection = MemcachedConnection::open(protocol, *backoff, Arc::clone(&self.metrics));
            (address, connection)
        };
        addresses.into_iter().map(connection).collect()
    }

    fn set(&self, servers: Vec<(Address, MemcachedConnection)>) {
        self.list.store(Arc::new(ServerList { servers, error: None }));
    }

    fn fail(&self, error: String) {
        let servers = self.list.load().servers.clone();
        self.list.store(Arc::new(ServerList { servers, error: Some(error) }));
    }

    pub(super) fn of_key(&self, key: &str) -> Result<MemcachedConnection, RemoteError> {
        let list = self.list.load();
        match list.servers.get(key::server(key, list.servers.len())) {
            Some((_, server)) => Ok(server.clone()),
            None => Err(RemoteError::NotSent(list.error.clone().unwrap_or_default())),
        }
    }

    pub(super) fn node(&self, key: impl FnOnce() -> String) -> StoreNode {
        let list = self.list.load();
        let index = match list.servers.len() {
            0 | 1 => 0,
            count => key::server(&key(), count),
        };
        let Some((address, _)) = list.servers.get(index) else { return StoreNode::default() };
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        StoreNode(hasher.finish())
    }

    pub(super) fn states(&self) -> ConnectionStates {
        let list = self.list.load();
        // the last look-up does not matter as long as servers are known
        let error = list.error.clone().filter(|_| list.servers.is_empty());
        let servers = list.servers.iter().map(|(_, server)| server.state()).collect();
        ConnectionStates { servers, error, one_is_enough: true }
    }
}

/// In the order of envoyproxy/ratelimit: sorted by their texts, in which the name ends with a dot.
fn addresses(services: Vec<Record>) -> Vec<Address> {
    let servers: BTreeMap<String, Address> = services
        .into_iter()
        .filter_map(|record| match record {
            Record::Service { host, port } => Some((format!("{host}.:{port}"), Address::tcp(&host, port))),
            Record::Address(_) => None,
        })
        .collect();
    servers.into_values().collect()
}

/// Looks up until servers are found, and then every `refresh`, until `servers` is dropped.
async fn follow(servers: Weak<Servers>, name: DnsName, refresh: Option<Duration>, name_servers: NameServers) {
    let mut failures = 0;
    loop {
        let Some(servers) = servers.upgrade() else { return };
        let Backoff { initial, max } = servers.settings.backoff;
        let wait = match dns::look_up(&name, &[RecordKind::Srv], &name_servers).await {
            Ok(found) => {
                failures = 0;
                servers.replace(addresses(found)).await;
                match refresh {
                    Some(refresh) => refresh,
                    None => return,
                }
            }
            Err(error) => {
                tracing::warn!(error, "cannot look up the memcached servers");
                failures += 1;
                servers.fail(error);
                // a name server must not be flooded
                initial
                    .max(Duration::from_secs(1))
                    .saturating_mul(failures)
                    .min(max.max(Duration::from_secs(10)))
            }
        };
        drop(servers);
        sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_sorted_as_texts() {
        let services = [("b", 9), ("b", 11_211), ("a", 80)];
        let record = |(host, port): (&str, u16)| Record::Service { host: host.into(), port };
        let sorted = [("a", 80), ("b", 11_211), ("b", 9)].map(|(host, port)| Address::tcp(host, port));
        assert_eq!(addresses(services.map(record).into()), sorted);
    }
}
