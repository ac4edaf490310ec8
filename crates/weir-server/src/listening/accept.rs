//! Accepts connections, makes their TLS handshakes, and hands them to the threads that serve.

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::either::Either;

use super::{
    certificates::Certificates,
    handshake::Handshakes,
    socket::ServedSocket,
    worker::{ServedProtocol, Workers},
};
use crate::{
    connections::{Connection, Connections},
    net::Listener,
};
use weir_observe::throttle::Throttle;

/// The first byte of a TLS handshake, which no protocol without TLS begins with.
pub(crate) const TLS_HANDSHAKE: u8 = 0x16;

/// How long to wait after a failed accept. The usual cause, too many open files, outlasts an immediate retry.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct ListeningPort<P> {
    pub(crate) listener: Listener,
    pub(crate) threads: usize,
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) protocol: Arc<P>,
}

/// Serves connections until `stop`, and polls `beside` meanwhile. Then accepts no more, waits for `stopping`, and shuts
/// the open connections down gracefully. Closes those that are still open after `drain`.
pub(crate) async fn accept<P: ServedProtocol>(
    listening: ListeningPort<P>,
    stop: impl Future<Output = ()>,
    beside: impl Future<Output = Infallible>,
    stopping: impl Future<Output = ()>,
    drain: Duration,
) -> io::Result<()> {
    let ListeningPort { listener, threads, certificates, connections, protocol } = listening;
    let mut workers = Workers::start(threads, &protocol)?;
    let (done, mut secured) = mpsc::unbounded_channel();
    let start = |certificates| Handshakes::start(threads, certificates, &done);
    let mut handshakes = certificates.as_ref().map(start).transpose()?;
    let failed = Throttle::default();
    let (mut stop, mut beside) = (pin!(stop), pin!(beside));
    loop {
        tokio::select! {
            () = &mut stop => break,
            never = &mut beside => match never {},
            Some((stream, opened)) = secured.recv() => workers.serve((Either::Right(stream), opened)),
            accepted = listener.accept() => match accepted {
                // a connection too many is closed here
                Ok(accepted) => if let Some(opened) = opened(&connections, &*protocol) {
                    match &mut handshakes {
                        None => workers.serve((Either::Left(ServedSocket::Detached(accepted)), opened)),
                        Some(handshakes) => handshakes.begin(accepted, opened).await,
                    }
                },
                Err(error) => {
                    if let Some(suppressed) = failed.admit(Instant::now()) {
                        tracing::warn!(%error, suppressed, "cannot accept a connection");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    drop(handshakes);
    while let Ok((stream, opened)) = secured.try_recv() {
        workers.serve((Either::Right(stream), opened));
    }
    stopping.await;
    if timeout(drain, workers.stop()).await.is_err() {
        tracing::warn!(connections = workers.open(), "shutdown timed out; closing the open connections");
    }
    Ok(())
}

fn opened(connections: &Arc<Connections>, protocol: &impl ServedProtocol) -> Option<Connection> {
    if protocol.has_to_authenticate() { connections.open_unauthenticated() } else { connections.open() }
}
