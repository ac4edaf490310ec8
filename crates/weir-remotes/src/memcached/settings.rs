//! The settings of Memcached: resolved, and safe to print.

use std::time::Duration;

use super::protocol::TLS_NAMES;
use crate::transport::Backoff;
use weir_net::{
    Address,
    dns::{DnsName, NameServers},
    tls::{ClientTls, ClientTlsNames},
};
use weir_store::name::KeySettings;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemcachedSettings {
    pub servers: ServerSource,
    /// `MEMCACHE_TLS`: except for unix sockets. The files are read again for every connection.
    pub tls: Option<ClientTls>,
    pub keys: KeySettings,
    /// The longest time for one command, and for making one connection.
    pub timeout: Duration,
    pub backoff: Backoff,
}

/// All instances must know the same servers in the same order: a key's server depends on its hash and their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerSource {
    /// `MEMCACHE_HOST_PORT`: at least one, in the given order.
    List(Vec<Address>),
    /// `MEMCACHE_SRV`: the targets of a DNS name, sorted as texts.
    Srv {
        /// The name, as [`DnsName::parse_service`] reads it.
        name: DnsName,
        /// `MEMCACHE_SRV_REFRESH`: the time between two look-ups; none to look up once.
        refresh: Option<Duration>,
        name_servers: NameServers,
    },
}

// === impl MemcachedSettings ===

impl MemcachedSettings {
    pub fn new(servers: ServerSource) -> Self {
        Self {
            servers,
            tls: None,
            keys: KeySettings::default(),
            timeout: Duration::from_secs(2),
            backoff: Backoff::default(),
        }
    }

    pub(crate) fn tls(&self) -> Option<(&ClientTls, ClientTlsNames)> {
        self.tls.as_ref().map(|tls| (tls, TLS_NAMES))
    }
}
