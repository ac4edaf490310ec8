//! The store that the settings ask for.

use std::sync::Arc;

use super::AppError;
use crate::{
    clock::Clock,
    settings::Settings,
    store::{AnyStore, MemoryStore, coordinated::Coordinated, redis::RedisRemote},
};

/// Memory alone, or memory in front of Redis, which need not be there yet.
pub(super) fn open(settings: &Settings, clock: &Arc<dyn Clock>) -> Result<AnyStore, AppError> {
    let Some(redis) = &settings.redis else {
        return Ok(AnyStore::Memory(MemoryStore::new(settings.max_counters)));
    };
    let remote = RedisRemote::new(redis.clone())?;
    Ok(AnyStore::Coordinated(Coordinated::new(remote, Arc::clone(clock), settings.coordination.clone())))
}
