//! The stores that instances share: a module each, over a common transport. A new one has a variant in
//! [`RemoteSettings`] and in [`AnyRemote`].

pub mod memcached;
pub mod redis;
mod transport;

use std::{sync::Arc, time::Duration};

use crate::{
    memcached::{MemcachedRemote, MemcachedSettings},
    redis::{RedisRemote, RedisSettings},
    transport::ConnectionStates,
};
use weir_limit::{SharedStore, Tier, Timestamp};
use weir_net::tls::{ClientTls, ClientTlsNames, TlsError};
use weir_observe::{Metric, Source};
use weir_store::{
    board::{BoardPost, BoardReply},
    clock::Clock,
    place_command::{PlaceCommand, PlaceReplies},
    pool_command::{PoolCommand, PoolReply},
    remote::{Command, Heartbeat, Members, Remote, RemoteError, Replies, StoreNode, Target},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteSettings {
    Redis(Box<RedisSettings>),
    Memcached(Box<MemcachedSettings>),
}

pub enum AnyRemote {
    Redis(RedisRemote),
    Memcached(MemcachedRemote),
}

macro_rules! with_any {
    ($any:expr, $store:ident => $act:expr) => {
        match $any {
            Self::Redis($store) => $act,
            Self::Memcached($store) => $act,
        }
    };
}

// === impl RemoteSettings ===

impl RemoteSettings {
    /// Opens the store, and starts to connect in the background. Windows of a store without a clock are those of
    /// `clock`. Must be called within a tokio runtime. Fails if a file that TLS needs is missing or invalid, but not if
    /// the store cannot be reached yet.
    pub fn open(self, clock: Arc<dyn Clock>) -> Result<AnyRemote, TlsError> {
        match self {
            Self::Redis(settings) => RedisRemote::new(*settings).map(AnyRemote::Redis),
            Self::Memcached(settings) => MemcachedRemote::new(*settings, clock).map(AnyRemote::Memcached),
        }
    }

    pub const fn store(&self) -> SharedStore {
        match self {
            Self::Redis(_) => SharedStore::REDIS,
            Self::Memcached(_) => memcached::STORE,
        }
    }

    /// Returns the files of its TLS, and the settings that name them; none in plain text.
    pub fn tls(&self) -> Option<(&ClientTls, ClientTlsNames)> {
        with_any!(self, settings => settings.tls())
    }

    /// Returns the time within which the service must connect to start; none to start without.
    pub const fn connect_within(&self) -> Option<Duration> {
        match self {
            Self::Redis(settings) => settings.connect_within,
            Self::Memcached(_) => None,
        }
    }
}

// === impl AnyRemote ===

impl AnyRemote {
    pub fn state(&self) -> ConnectionStates {
        with_any!(self, remote => remote.state())
    }
}

impl Remote for AnyRemote {
    fn shared_store(&self) -> SharedStore {
        with_any!(self, remote => remote.shared_store())
    }

    fn has_clock(&self) -> bool {
        with_any!(self, remote => remote.has_clock())
    }

    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        with_any!(self, remote => remote.call(commands).await)
    }

    async fn call_in_background(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        with_any!(self, remote => remote.call_in_background(commands).await)
    }

    async fn heartbeat(&self, heartbeat: Heartbeat<'_>) -> Result<Members, RemoteError> {
        with_any!(self, remote => remote.heartbeat(heartbeat).await)
    }

    fn has_board(&self) -> bool {
        with_any!(self, remote => remote.has_board())
    }

    async fn post(&self, post: BoardPost<'_>) -> Result<BoardReply, RemoteError> {
        with_any!(self, remote => remote.post(post).await)
    }

    async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        with_any!(self, remote => remote.call_pool(command).await)
    }

    async fn call_places(&self, commands: Vec<PlaceCommand>) -> Result<PlaceReplies, RemoteError> {
        with_any!(self, remote => remote.call_places(commands).await)
    }

    fn home(&self, tiers: &[Tier]) -> u64 {
        with_any!(self, remote => remote.home(tiers))
    }

    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        with_any!(self, remote => remote.node(target, at))
    }

    fn members_node(&self) -> StoreNode {
        with_any!(self, remote => remote.members_node())
    }
}

impl Source for AnyRemote {
    fn metrics(&self) -> Vec<Metric> {
        with_any!(self, remote => remote.metrics())
    }
}
