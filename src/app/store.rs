//! The store that the settings ask for.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::AppError;
use crate::{
    clock::Clock,
    runtime,
    settings::Settings,
    store::{AnyStore, MemoryStore, coordinated::Coordinated, redis::RedisRemote},
};

/// The thread that speaks to a shared store. One by itself: what decisions ask for at the same time travels together then,
/// nothing moves from core to core on the way, and neither doors nor rules hold it up. It ends when this is dropped.
pub(super) struct StoreThread {
    _stop: oneshot::Sender<()>,
}

/// Memory alone; or memory in front of Redis, which need not be there yet, and the thread that speaks to it.
pub(super) async fn open(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
) -> Result<(AnyStore, Option<StoreThread>), AppError> {
    let Some(redis) = settings.redis.clone() else {
        return Ok((AnyStore::Memory(MemoryStore::new(settings.max_counters)), None));
    };
    let (clock, coordination) = (Arc::clone(clock), settings.coordination.clone());
    let (hand_over, store) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    // it is opened there, for whatever it does in the background goes on where it was opened
    let serve = async move || {
        let remote = RedisRemote::new(redis);
        let _ = hand_over.send(remote.map(|remote| Coordinated::new(remote, clock, coordination)));
        // an error is that nobody is left who could tell it to
        let _ = stopped.await;
    };
    runtime::spawn("weir-store".into(), serve).map_err(AppError::Thread)?;
    let store = store.await.map_err(|ended| AppError::Ended(ended.into()))??;
    Ok((AnyStore::Coordinated(store), Some(StoreThread { _stop: stop })))
}
