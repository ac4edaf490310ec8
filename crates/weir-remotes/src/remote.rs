//! The shared store that the settings select.

use crate::{memcached::MemcachedRemote, redis::RedisRemote, transport::ConnectionStates};
use weir_limit::{Coordination, SharedStore, Tier, Timestamp};
use weir_observe::{Metric, Source};
use weir_store::{
    pool_command::{PoolCommand, PoolReply},
    remote::{Command, Heartbeat, Members, Remote, RemoteError, Replies, StoreNode, Target},
};

/// Any shared store.
pub enum AnyRemote {
    /// Redis.
    Redis(RedisRemote),
    /// Memcached.
    Memcached(MemcachedRemote),
}

macro_rules! with_any {
    ($any:expr, $remote:ident => $act:expr) => {
        match $any {
            AnyRemote::Redis($remote) => $act,
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
            Self::Redis(_) => "redis",
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

    async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        with_any!(self, remote => remote.call_pool(command).await)
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
