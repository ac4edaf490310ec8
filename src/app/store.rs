//! The store that the settings ask for.

use std::{sync::Arc, thread};

use tokio::{runtime::Builder, sync::oneshot};

use super::AppError;
use crate::{
    clock::Clock,
    settings::Settings,
    store::{AnyStore, MemoryStore, coordinated::Coordinated, redis::RedisRemote},
};

/// The thread that speaks to a shared store. One by itself: what decisions ask for at the same time travels together then,
/// nothing moves from core to core on the way, and neither doors nor rules hold it up. It ends when this is dropped.
pub(super) struct StoreThread {
    _stop: oneshot::Sender<()>,
}

/// Memory alone; or memory in front of Redis, which need not be there yet, and the thread that speaks to it.
pub(super) fn open(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
) -> Result<(AnyStore, Option<StoreThread>), AppError> {
    let Some(redis) = &settings.redis else {
        return Ok((AnyStore::Memory(MemoryStore::new(settings.max_counters)), None));
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(AppError::Thread)?;
    let store = {
        // whatever goes on in the background goes on there
        let _inside = runtime.enter();
        let remote = RedisRemote::new(redis.clone())?;
        Coordinated::new(remote, Arc::clone(clock), settings.coordination.clone())
    };
    let (stop, stopped) = oneshot::channel();
    let serve = move || {
        // an error is that nobody is left who could tell it to
        let _ = runtime.block_on(stopped);
    };
    thread::Builder::new().name("weir-store".into()).spawn(serve).map_err(AppError::Thread)?;
    Ok((AnyStore::Coordinated(store), Some(StoreThread { _stop: stop })))
}
