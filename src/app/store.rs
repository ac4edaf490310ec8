//! Opens the store that the settings select.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::error::AppError;
use crate::{
    clock::Clock,
    runtime,
    settings::Settings,
    store::{AnyStore, MemoryStore, coordinated::Coordinated, redis::RedisRemote},
};

/// The thread that communicates with a shared store; ends when this is dropped. One dedicated thread batches commands of
/// concurrent decisions, keeps them on one core, and is not delayed by servers or rule loading.
pub(super) struct StoreThread {
    _stop: oneshot::Sender<()>,
}

/// Opens the memory store, or, with Redis settings, the coordinated store and its thread. Redis need not be reachable yet.
pub(super) async fn open(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
) -> Result<(AnyStore, Option<StoreThread>), AppError> {
    let Some(redis) = settings.redis.clone() else {
        return Ok((AnyStore::Memory(MemoryStore::new(settings.max_counters)), None));
    };
    let (clock, coordination) = (Arc::clone(clock), settings.coordination.clone());
    let (opened, store) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    // opened on the thread, since its background tasks run where it was opened
    let serve = async move || {
        let remote = RedisRemote::new(redis);
        let _ = opened.send(remote.map(|remote| Coordinated::new(remote, clock, coordination)));
        // an error also means that `StoreThread` was dropped
        let _ = stopped.await;
    };
    runtime::spawn("weir-store".into(), serve).map_err(AppError::Thread)?;
    let store = store.await.map_err(|ended| AppError::Ended(ended.into()))??;
    Ok((AnyStore::Coordinated(store), Some(StoreThread { _stop: stop })))
}
