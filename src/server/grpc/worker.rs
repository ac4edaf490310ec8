//! The threads that serve connections. Each has its own runtime, so that one write carries the responses to all requests of one
//! read, and no decision moves to another core or waits for background work.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    net::{TcpStream, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

use super::{
    connection::{Services, reject_tls, serve},
    socket::Incoming,
};
use crate::{net::Accepted, runtime, server::connections::Connection, store::Store};

/// All worker threads.
pub(super) struct Workers {
    threads: Vec<Worker>,
    /// Starts the graceful shutdown of their connections.
    stopping: watch::Sender<bool>,
    /// Closes their connections at once when dropped.
    _cut: watch::Sender<()>,
}

/// One thread.
struct Worker {
    /// None once the worker should end.
    connections: Option<mpsc::UnboundedSender<(Incoming, Connection)>>,
    /// The number of open connections.
    open: Arc<AtomicUsize>,
    /// Completes when the last connection has ended, after `connections` was dropped.
    ended: oneshot::Receiver<()>,
}

/// Counts a connection as open until dropped.
struct OpenGuard(Arc<AtomicUsize>);

// === impl Workers ===

impl Workers {
    /// Starts `threads` threads, at least one, that serve `services`.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot start a thread.
    pub(super) fn start<S: Store>(threads: usize, services: &Arc<Services<S>>) -> io::Result<Self> {
        let (stopping, stopped) = watch::channel(false);
        let (cut, is_cut) = watch::channel(());
        let start = |index| Worker::start(index, Arc::clone(services), stopped.clone(), is_cut.clone());
        Ok(Self { threads: (0..threads.max(1)).map(start).collect::<Result<_, _>>()?, stopping, _cut: cut })
    }

    /// Serves `accepted` on the thread with the fewest connections, so that a proxy's few connections use all cores.
    pub(super) fn serve(&self, accepted: (Incoming, Connection)) {
        let idlest = self.threads.iter().min_by_key(|worker| worker.open.load(Ordering::Relaxed));
        if let Some(worker) = idlest
            && let Some(connections) = &worker.connections
        {
            worker.open.fetch_add(1, Ordering::Relaxed);
            // the worker receives for as long as the sender exists
            let _ = connections.send(accepted);
        }
    }

    /// Returns the number of open connections.
    pub(super) fn open(&self) -> usize {
        self.threads.iter().map(|worker| worker.open.load(Ordering::Relaxed)).sum()
    }

    /// Shuts all connections down gracefully, and waits until they have ended. Dropping the workers closes those that have not.
    pub(super) async fn stop(&mut self) {
        self.stopping.send_replace(true);
        for worker in &mut self.threads {
            worker.connections = None;
        }
        for worker in &mut self.threads {
            let _ = (&mut worker.ended).await;
        }
    }
}

// === impl Worker ===

impl Worker {
    fn start<S: Store>(
        index: usize,
        services: Arc<Services<S>>,
        stopping: watch::Receiver<bool>,
        cut: watch::Receiver<()>,
    ) -> io::Result<Self> {
        let (connections, accepted) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let open = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&open);
        runtime::spawn(format!("weir-grpc-{index}"), async move || {
            run(accepted, &services, &counted, stopping, cut).await;
            // an error means that nothing waits for this worker
            let _ = end.send(());
        })?;
        Ok(Self { connections: Some(connections), open, ended })
    }
}

/// Serves the `accepted` connections until the channel is closed and all of them have ended, or until `cut`.
async fn run<S: Store>(
    mut accepted: mpsc::UnboundedReceiver<(Incoming, Connection)>,
    services: &Arc<Services<S>>,
    open: &Arc<AtomicUsize>,
    stopping: watch::Receiver<bool>,
    mut cut: watch::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    let mut more = true;
    while more || !connections.is_empty() {
        tokio::select! {
            next = accepted.recv(), if more => match next {
                Some((connection, opened)) => {
                    let guard = OpenGuard(Arc::clone(open));
                    let (services, stopping) = (Arc::clone(services), stopping.clone());
                    connections.spawn(async move {
                        if let Err(error) = serve_accepted(connection, &opened, &services, stopping).await {
                            services.log_failed(&error);
                        }
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

async fn serve_accepted<S: Store>(
    connection: Incoming,
    opened: &Connection,
    services: &Services<S>,
    stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    match connection {
        Incoming::Plain(Accepted::Tcp(stream)) => {
            let stream = TcpStream::from_std(stream)?;
            if !reject_tls(&stream, opened.account(), services).await {
                serve(stream, opened, services, stopping).await;
            }
        }
        Incoming::Plain(Accepted::Unix(stream)) => {
            serve(UnixStream::from_std(stream)?, opened, services, stopping).await;
        }
        Incoming::Secured(mut stream) => {
            stream.get_mut().0.attach()?;
            serve(stream, opened, services, stopping).await;
        }
    }
    Ok(())
}

// === impl OpenGuard ===

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
