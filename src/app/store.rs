//! Opens the store that the settings select.

use std::sync::Arc;

use weir_client::{AnyStore, StoreThread};
use weir_disk::DiskStore;
use weir_net::tls::TlsError;
use weir_remotes::{AnyRemote, memcached::MemcachedRemote, redis::RedisRemote};
use weir_store::{MemoryStore, clock::Clock};

use super::error::AppError;
use crate::settings::Settings;

/// A shared store need not be reachable yet.
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
    let (timed, coordination) = (Arc::clone(clock), settings.coordination.clone());
    let opened = match (settings.redis.clone(), settings.memcached.clone()) {
        (Some(redis), _) => {
            let connect = || RedisRemote::new(redis).map(AnyRemote::Redis).map_err(tls_error("to redis"));
            StoreThread::open(connect, Arc::clone(clock), coordination).await
        }
        (None, Some(memcached)) => {
            let remote = || MemcachedRemote::new(memcached, timed).map(AnyRemote::Memcached);
            let connect = || remote().map_err(tls_error("to memcached"));
            StoreThread::open(connect, Arc::clone(clock), coordination).await
        }
        (None, None) => return Ok((AnyStore::Memory(MemoryStore::new(settings.max_counters)), None)),
    };
    let (store, thread) = opened.map_err(AppError::Thread)??;
    Ok((store, Some(thread)))
}

fn tls_error(of: &'static str) -> impl FnOnce(TlsError) -> AppError {
    move |source| AppError::Tls { of, source }
}
