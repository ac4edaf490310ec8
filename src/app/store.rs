//! Opens the store that the settings select.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::error::AppError;
use crate::{
    clock::Clock,
    runtime,
    settings::Settings,
    store::{
        AnyRemote, AnyStore, MemoryStore, coordinated::Coordinated, disk::DiskStore,
        memcached::MemcachedRemote, redis::RedisRemote,
    },
};

/// The thread that communicates with a shared store; ends when this is dropped. One dedicated thread batches commands of
/// concurrent decisions, keeps them on one core, and is not delayed by servers or rule loading.
pub(super) struct StoreThread {
    _stop: oneshot::Sender<()>,
}

/// Opens the memory store, or the store on disk, or, with the settings of a shared store, the coordinated store and its thread. The shared store need
/// not be reachable yet.
pub(super) async fn open(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
) -> Result<(AnyStore, Option<StoreThread>), AppError> {
    if let Some(disk) = settings.disk.clone() {
        let clock = Arc::clone(clock);
        // reads the journal first, which may take seconds
        let opened = tokio::task::spawn_blocking(move || DiskStore::open(disk, clock)).await;
        let store = opened.map_err(|ended| AppError::Ended(ended.into()))??;
        return Ok((AnyStore::Disk(store), None));
    }
    let (redis, memcached) = (settings.redis.clone(), settings.memcached.clone());
    if redis.is_none() && memcached.is_none() {
        return Ok((AnyStore::Memory(MemoryStore::new(settings.max_counters)), None));
    }
    let (clock, coordination) = (Arc::clone(clock), settings.coordination.clone());
    let (opened, store) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    // opened on the thread, since its background tasks run where it was opened
    let serve = async move || {
        let remote = match (redis, memcached) {
            (Some(redis), _) => RedisRemote::new(redis).map(AnyRemote::Redis).map_err(AppError::RedisTls),
            (None, Some(memcached)) => MemcachedRemote::new(memcached, Arc::clone(&clock))
                .map(AnyRemote::Memcached)
                .map_err(AppError::MemcachedTls),
            (None, None) => return,
        };
        let _ = opened.send(remote.map(|remote| Coordinated::new(remote, clock, coordination)));
        // an error also means that `StoreThread` was dropped
        let _ = stopped.await;
    };
    runtime::spawn("weir-store".into(), serve).map_err(AppError::Thread)?;
    let store = store.await.map_err(|ended| AppError::Ended(ended.into()))??;
    Ok((AnyStore::Coordinated(store), Some(StoreThread { _stop: stop })))
}
