//! The shared store that the settings select.

use super::{
    memcached::MemcachedRemote,
    pool_command::{PoolCommand, PoolReply},
    redis::{ConnectionStates, RedisRemote},
    remote::{Command, Remote, RemoteError, Replies, StoreNode, Target},
};
use crate::{
    limit::{
        Coordination, Period, SharedStore, Timestamp,
        request_bucket::{StepReply, StepRequest},
    },
    observe::{Metric, Source},
};

/// Any shared store.
pub enum AnyRemote {
    /// Redis.
    Redis(RedisRemote),
    /// Memcached.
    Memcached(MemcachedRemote),
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
        match self {
            Self::Redis(redis) => redis.state(),
            Self::Memcached(memcached) => memcached.state(),
        }
    }
}

impl Remote for AnyRemote {
    fn shared_store(&self) -> SharedStore {
        match self {
            Self::Redis(redis) => redis.shared_store(),
            Self::Memcached(memcached) => memcached.shared_store(),
        }
    }

    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        match self {
            Self::Redis(redis) => redis.call(commands).await,
            Self::Memcached(memcached) => memcached.call(commands).await,
        }
    }

    async fn call_in_background(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        match self {
            Self::Redis(redis) => redis.call_in_background(commands).await,
            Self::Memcached(memcached) => memcached.call_in_background(commands).await,
        }
    }

    async fn heartbeat(&self, instance: &str, ttl: Period) -> Result<usize, RemoteError> {
        match self {
            Self::Redis(redis) => redis.heartbeat(instance, ttl).await,
            Self::Memcached(memcached) => memcached.heartbeat(instance, ttl).await,
        }
    }

    async fn take_steps(&self, path: &str, request: &StepRequest) -> Result<Option<StepReply>, RemoteError> {
        match self {
            Self::Redis(redis) => redis.take_steps(path, request).await,
            Self::Memcached(memcached) => memcached.take_steps(path, request).await,
        }
    }

    async fn delete_steps(&self, path: &str) -> Result<bool, RemoteError> {
        match self {
            Self::Redis(redis) => redis.delete_steps(path).await,
            Self::Memcached(memcached) => memcached.delete_steps(path).await,
        }
    }

    fn keeps_pools(&self) -> bool {
        match self {
            Self::Redis(redis) => redis.keeps_pools(),
            Self::Memcached(memcached) => memcached.keeps_pools(),
        }
    }

    async fn call_pool(&self, command: PoolCommand) -> Result<PoolReply, RemoteError> {
        match self {
            Self::Redis(redis) => redis.call_pool(command).await,
            Self::Memcached(memcached) => memcached.call_pool(command).await,
        }
    }

    fn supports(&self, target: &Target, mode: Coordination) -> bool {
        match self {
            Self::Redis(redis) => redis.supports(target, mode),
            Self::Memcached(memcached) => memcached.supports(target, mode),
        }
    }

    fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        match self {
            Self::Redis(redis) => redis.node(target, at),
            Self::Memcached(memcached) => memcached.node(target, at),
        }
    }

    fn members_node(&self) -> StoreNode {
        match self {
            Self::Redis(redis) => redis.members_node(),
            Self::Memcached(memcached) => memcached.members_node(),
        }
    }
}

impl Source for AnyRemote {
    fn metrics(&self) -> Vec<Metric> {
        match self {
            Self::Redis(redis) => redis.metrics(),
            Self::Memcached(memcached) => memcached.metrics(),
        }
    }
}
