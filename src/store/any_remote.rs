//! The shared store that the settings select.

#[cfg(feature = "memcached")]
use super::memcached::MemcachedRemote;
#[cfg(feature = "redis")]
use super::redis::RedisRemote;
use super::{
    pool_command::{PoolCommand, PoolReply},
    remote::{Command, Heartbeat, Members, Remote, RemoteError, Replies, StoreNode, Target},
    transport::ConnectionStates,
};
use crate::{
    limit::{Coordination, SharedStore, Tier, Timestamp},
    observe::{Metric, Source},
};

/// Any shared store.
pub enum AnyRemote {
    /// Redis.
    #[cfg(feature = "redis")]
    Redis(RedisRemote),
    /// Memcached.
    #[cfg(feature = "memcached")]
    Memcached(MemcachedRemote),
}

macro_rules! with_any {
    ($any:expr, $remote:ident => $act:expr) => {
        match $any {
            #[cfg(feature = "redis")]
            AnyRemote::Redis($remote) => $act,
            #[cfg(feature = "memcached")]
            AnyRemote::Memcached($remote) => $act,
        }
    };
}

// === impl AnyRemote ===

impl AnyRemote {
    /// Returns its name, for logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis",
            #[cfg(feature = "memcached")]
            Self::Memcached(_) => "memcached",
        }
    }

    /// Returns the states of its connections.
    #[must_use]
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

    fn keeps_pools(&self) -> bool {
        with_any!(self, remote => remote.keeps_pools())
    }

    async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        with_any!(self, remote => remote.call_pool(command).await)
    }

    fn supports(&self, target: &Target, mode: Coordination) -> bool {
        with_any!(self, remote => remote.supports(target, mode))
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
