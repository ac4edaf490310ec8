//! The threads that serve connections: each has a runtime of its own, so that what one read has brought is answered by one
//! write, no decision moves to another core, and none waits behind what goes on in the background.

use std::{
    io,
    net::TcpStream as StdTcpStream,
    os::unix::net::UnixStream as StdUnixStream,
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

use super::connection::{Services, serve};
use crate::{runtime, store::Store};

/// A connection that no runtime has yet.
pub(super) enum Accepted {
    Tcp(StdTcpStream),
    Unix(StdUnixStream),
}

/// All threads that serve.
pub(super) struct Workers {
    threads: Vec<Worker>,
    /// Tells them to end their connections in peace.
    stopping: watch::Sender<bool>,
    /// Ends them at once, when it is dropped.
    _cut: watch::Sender<()>,
}

/// One thread.
struct Worker {
    /// None when it is to end.
    connections: Option<mpsc::UnboundedSender<Accepted>>,
    /// How many of them are open.
    open: Arc<AtomicUsize>,
    /// Answers when the last of them has ended, after there is no sender of more.
    ended: oneshot::Receiver<()>,
}

/// A connection counts as open while this lives.
struct Open(Arc<AtomicUsize>);

// === impl Workers ===

impl Workers {
    /// Starts so many threads that serve `services`.
    pub(super) fn start<S: Store>(threads: usize, services: &Arc<Services<S>>) -> io::Result<Self> {
        let (stopping, stopped) = watch::channel(false);
        let (cut, is_cut) = watch::channel(());
        let start = |index| Worker::start(index, Arc::clone(services), stopped.clone(), is_cut.clone());
        Ok(Self { threads: (0..threads.max(1)).map(start).collect::<Result<_, _>>()?, stopping, _cut: cut })
    }

    /// Has `accepted` served by the thread that serves the fewest, so that the few connections of a proxy use all cores.
    pub(super) fn serve(&self, accepted: Accepted) {
        let idlest = self.threads.iter().min_by_key(|worker| worker.open.load(Ordering::Relaxed));
        if let Some(worker) = idlest
            && let Some(connections) = &worker.connections
        {
            worker.open.fetch_add(1, Ordering::Relaxed);
            // it takes them for as long as there is a sender
            let _ = connections.send(accepted);
        }
    }

    /// How many connections are open.
    pub(super) fn open(&self) -> usize {
        self.threads.iter().map(|worker| worker.open.load(Ordering::Relaxed)).sum()
    }

    /// Takes no more connections, asks the clients to leave, and waits until they have. Those that are left when this is
    /// dropped are cut.
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
            // whoever does not wait for it has gone
            let _ = end.send(());
        })?;
        Ok(Self { connections: Some(connections), open, ended })
    }
}

/// Serves what is `accepted` until there are no more, and what is open has ended or is `cut`.
async fn run<S: Store>(
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
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
                Some(connection) => {
                    let open = Open(Arc::clone(open));
                    let (services, stopping) = (Arc::clone(services), stopping.clone());
                    connections.spawn(async move {
                        if let Err(error) = serve_accepted(connection, &services, stopping).await {
                            tracing::warn!(%error, "a connection could not be served");
                        }
                        drop(open);
                    });
                }
                None => more = false,
            },
            Some(_) = connections.join_next() => {}
            // nothing is ever sent there: whoever could, has gone
            _ = cut.changed() => break,
        }
    }
}

async fn serve_accepted<S: Store>(
    connection: Accepted,
    services: &Services<S>,
    stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    match connection {
        Accepted::Tcp(stream) => serve(TcpStream::from_std(stream)?, services, stopping).await,
        Accepted::Unix(stream) => serve(UnixStream::from_std(stream)?, services, stopping).await,
    }
    Ok(())
}

// === impl Open ===

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
