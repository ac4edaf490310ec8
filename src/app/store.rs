//! Opens the store that the settings select.

use std::sync::Arc;

use weir_client::{AnyStore, StoreThread};
use weir_disk::DiskStore;
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
    let Some(shared) = settings.shared.clone() else {
        return Ok((AnyStore::Memory(MemoryStore::new(settings.max_counters)), None));
    };
    let of = format!("to {}", shared.store().system);
    let opened = StoreThread::open(shared, Arc::clone(clock), settings.coordination.clone()).await;
    let (store, thread) = opened.map_err(AppError::Thread)?.map_err(|source| AppError::Tls { of, source })?;
    Ok((store, Some(thread)))
}
