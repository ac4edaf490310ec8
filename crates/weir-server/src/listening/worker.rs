//! The threads that serve connections. Each has its own runtime, so that one write carries the responses to all
//! requests of one read, and no decision moves to another core or waits for background work.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

use super::socket::{ServedStream, attach};
use crate::connections::Connection;
use weir_observe::throttle::Throttle;
use weir_store::runtime;

pub(crate) trait ServedProtocol: Send + Sync + 'static {
    /// Begins the names of its threads.
    const THREADS: &'static str;

    /// Serves until the connection ends; gracefully when `stopping` becomes true.
    fn serve(
        &self,
        stream: ServedStream,
        opened: &Connection,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send;

    /// Returns whether clients have to authenticate with the protocol before they may do anything else.
    fn has_to_authenticate(&self) -> bool {
        false
    }
}

pub(crate) struct Workers {
    threads: Vec<ServingThread>,
    stopping: watch::Sender<bool>,
    /// Closes their connections at once when dropped.
    _cut: watch::Sender<()>,
}

struct ServingThread {
    /// None once the worker should end.
    connections: Option<mpsc::UnboundedSender<(ServedStream, Connection)>>,
    open: Arc<AtomicUsize>,
    /// Completes when the last connection has ended, after `connections` was dropped.
    ended: oneshot::Receiver<()>,
}

struct OpenGuard(Arc<AtomicUsize>);

// === impl Workers ===

impl Workers {
    pub(crate) fn start<P: ServedProtocol>(threads: usize, services: &Arc<P>) -> io::Result<Self> {
        let (stopping, stopped) = watch::channel(false);
        let (cut, is_cut) = watch::channel(());
        let start =
            |index| ServingThread::start(index, Arc::clone(services), stopped.clone(), is_cut.clone());
        Ok(Self { threads: (0..threads.max(1)).map(start).collect::<Result<_, _>>()?, stopping, _cut: cut })
    }

    /// Serves `accepted` on the thread with the fewest connections, so that a proxy's few connections use all cores.
    pub(crate) fn serve(&self, accepted: (ServedStream, Connection)) {
        let idlest = self.threads.iter().min_by_key(|worker| worker.open.load(Ordering::Relaxed));
        if let Some(worker) = idlest
            && let Some(connections) = &worker.connections
        {
            worker.open.fetch_add(1, Ordering::Relaxed);
            // the worker receives for as long as the sender exists
            let _ = connections.send(accepted);
        }
    }

    pub(crate) fn open(&self) -> usize {
        self.threads.iter().map(|worker| worker.open.load(Ordering::Relaxed)).sum()
    }

    /// Shuts connections down gracefully, and waits for their ends. Dropping the workers closes those still open.
    pub(crate) async fn stop(&mut self) {
        self.stopping.send_replace(true);
        for worker in &mut self.threads {
            worker.connections = None;
        }
        for worker in &mut self.threads {
            let _ = (&mut worker.ended).await;
        }
    }
}

// === impl ServingThread ===

impl ServingThread {
    fn start<P: ServedProtocol>(
        index: usize,
        services: Arc<P>,
        stopping: watch::Receiver<bool>,
        cut: watch::Receiver<()>,
    ) -> io::Result<Self> {
        let (connections, accepted) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let open = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&open);
        runtime::spawn(format!("{}-{index}", P::THREADS), async move || {
            run(accepted, &services, &counted, stopping, cut).await;
            // an error means that nothing waits for this worker
            let _ = end.send(());
        })?;
        Ok(Self { connections: Some(connections), open, ended })
    }
}

/// Serves the `accepted` connections until the channel is closed and all of them have ended, or until `cut`.
async fn run<P: ServedProtocol>(
    mut accepted: mpsc::UnboundedReceiver<(ServedStream, Connection)>,
    services: &Arc<P>,
    open: &Arc<AtomicUsize>,
    stopping: watch::Receiver<bool>,
    mut cut: watch::Receiver<()>,
) {
    let (mut connections, failed) = (JoinSet::new(), Throttle::default());
    let mut more = true;
    while more || !connections.is_empty() {
        tokio::select! {
            next = accepted.recv(), if more => match next {
                Some((mut stream, opened)) => {
                    let guard = OpenGuard(Arc::clone(open));
                    if let Err(error) = attach(&mut stream) {
                        if let Some(suppressed) = failed.admit(Instant::now()) {
                            tracing::warn!(%error, suppressed, "cannot serve a connection");
                        }
                        continue;
                    }
                    let (services, stopping) = (Arc::clone(services), stopping.clone());
                    connections.spawn(async move {
                        services.serve(stream, &opened, stopping).await;
                        drop(guard);
                    });
                }
                None => more = false,
            },
            Some(_) = connections.join_next() => {}
            // nothing is ever sent: this completes when the sender is dropped
            _ = cut.changed() => break,
        }
    }
}

// === impl OpenGuard ===

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
