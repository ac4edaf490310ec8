//! The thread that communicates with a shared store.

use std::{io, sync::Arc};

use tokio::sync::oneshot;

use crate::selected_store::AnyStore;
use weir_coordinate::{Coordinated, CoordinationSettings};
use weir_net::tls::TlsError;
use weir_remotes::RemoteSettings;
use weir_store::{clock::Clock, runtime};

/// The thread that communicates with a shared store; ends when this is dropped. One dedicated thread batches commands
/// of concurrent decisions, keeps them on one core, and is not delayed by servers or rule loading.
#[derive(Debug)]
pub struct StoreThread {
    _stop: oneshot::Sender<()>,
}

// === impl StoreThread ===

impl StoreThread {
    /// Starts the thread, with a store in front of the one of `settings`, which need not be reachable yet.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread; that of [`RemoteSettings::open`].
    pub async fn open(
        settings: RemoteSettings,
        clock: Arc<dyn Clock>,
        coordination: CoordinationSettings,
    ) -> io::Result<Result<(AnyStore, Self), TlsError>> {
        let (opened, store) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        // opened on the thread, since its background tasks run where it was opened
        let serve = async move || {
            let remote = settings.open(Arc::clone(&clock));
            let _ = opened.send(remote.map(|remote| Coordinated::new(remote, clock, coordination)));
            // an error also means that `StoreThread` was dropped
            let _ = stopped.await;
        };
        runtime::spawn("weir-store".into(), serve)?;
        let store = store.await.map_err(io::Error::other)?;
        Ok(store.map(|store| (AnyStore::Coordinated(store), Self { _stop: stop })))
    }
}
