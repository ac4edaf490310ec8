//! One connection: handshake, requests, graceful shutdown.

use std::{
    future, io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use h2::{
    Ping, PingPong, RecvStream,
    server::{Builder, SendResponse},
};
use http::Request;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::watch,
    time::{self, timeout},
};
use tonic::service::Routes;

use super::{
    acquire::{AcquireService, Method},
    health_and_reflection, request_headers,
    response::send,
    service::Service,
    stream::{CallKind, StreamDriver},
};
use crate::{
    connections::{CALL, Connection, ConnectionAccount, Connections, Metered, UnreadBytes},
    listening::{Incoming, ServedProtocol, TLS_HANDSHAKE},
    net::{Accepted, ConnectionAge},
};
use weir_limit::Timestamp;
use weir_observe::throttle::Throttle;
use weir_store::Store;

/// The maximum number of open requests of one connection. Each is decided in microseconds, and Envoy opens another
/// connection past the bound. The connection's window bounds their unread bytes in any case.
const MAX_CONCURRENT_STREAMS: u32 = 4096;

const WINDOW: u32 = 1024 * 1024;

/// The maximum size of a request's headers, in bytes.
const MAX_HEADERS: u32 = 16 * 1024;

/// The budget of small frames past which h2 assumes an attack: enough for [`MAX_CONCURRENT_STREAMS`] requests at once.
const SMALL_FRAMES: usize = MAX_CONCURRENT_STREAMS as usize * 512;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// The time without received data after which a connection gets a ping.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_mins(1);

const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Services<S> {
    pub(super) service: Service<S>,
    pub(super) acquire: AcquireService<S>,
    pub(super) health_and_reflection: Routes,
    pub(super) age: ConnectionAge,
    pub(super) connections: Arc<Connections>,
    pub(super) tls_rejected: Throttle,
    pub(super) failed: Throttle,
}

/// Serves until the client closes the connection. At its age, or on `stopping`, asks for another one, and ends with the
/// open requests or the grace period. Ends at once if the client reads no responses, or `open` holds too much.
pub(super) async fn serve<S: Store, I>(
    io: I,
    open: &Connection,
    services: &Services<S>,
    mut stopping: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let account = open.account();
    let io = Metered::new(io, Arc::clone(account));
    let handshake = timeout(HANDSHAKE_TIMEOUT, protocol().handshake(io));
    let handshake = tokio::select! {
        handshake = handshake => handshake,
        () = account.closed() => return tracing::debug!("connection closed for another one"),
    };
    let mut connection = match handshake {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%error, "connection rejected: not HTTP/2"),
        Err(_) => return tracing::debug!("connection closed: handshake timed out"),
    };
    let pings = connection.ping_pong();
    let active = AtomicBool::new(false);
    let mut lost = pin!(lost(pings, &active));
    let mut overrun = pin!(account.overrun(services.connections.bounds().sending));
    let now = || services.service.now();
    let handle = |call, respond, now| services.handle(call, respond, now, account);
    let mut driver = StreamDriver::new(connection, open, services.service.stats(), &active, &now, handle);
    tokio::select! {
        biased;
        ended = driver.run() => return log_end(ended),
        () = &mut lost => return,
        () = &mut overrun => return,
        () = services.age.reached() => tracing::debug!("connection reached its maximum age"),
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    driver.shut_down();
    tokio::select! {
        biased;
        ended = driver.run() => log_end(ended),
        () = &mut lost => {}
        () = &mut overrun => {}
        () = services.age.grace_over() => tracing::debug!("connection closed: grace period over"),
    }
}

/// Whether the first byte begins a TLS handshake, which is logged, or the client sent none. Waits for that byte.
pub(super) async fn reject_tls<S>(
    stream: &TcpStream,
    account: &ConnectionAccount,
    services: &Services<S>,
) -> bool {
    let mut first = [0];
    let peeked = tokio::select! {
        peeked = timeout(HANDSHAKE_TIMEOUT, stream.peek(&mut first)) => peeked,
        () = account.closed() => return true,
    };
    match peeked {
        Ok(Ok(1)) if first[0] != TLS_HANDSHAKE => return false,
        Ok(Ok(1)) => {
            if let Some(suppressed) = services.tls_rejected.admit(Instant::now()) {
                let peer = stream.peer_addr().map_or_else(|_| "unknown".to_owned(), |peer| peer.to_string());
                tracing::warn!(
                    %peer,
                    suppressed,
                    "connection rejected: the client speaks TLS, and GRPC_SERVER_USE_TLS is not set"
                );
            }
        }
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "connection lost"),
        Err(_) => tracing::debug!("connection closed: handshake timed out"),
    }
    true
}

/// Waits until the client is unreachable: the connection was not `active` for a while, and a ping gets no reply.
async fn lost(pings: Option<PingPong>, active: &AtomicBool) {
    let Some(mut pings) = pings else { return future::pending().await };
    loop {
        time::sleep(KEEP_ALIVE_INTERVAL).await;
        if active.swap(false, Ordering::Relaxed) {
            continue;
        }
        match timeout(KEEP_ALIVE_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // the connection itself reports this error
            Ok(Err(_)) => return future::pending().await,
            Err(_) => return tracing::debug!("connection closed: no reply to a ping"),
        }
    }
}

fn protocol() -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .data_frame_budget(SMALL_FRAMES);
    builder
}

// === impl Services ===

impl<S: Store> ServedProtocol for Services<S> {
    const THREADS: &'static str = "weir-grpc";

    async fn serve(
        &self,
        connection: Incoming,
        opened: &Connection,
        stopping: watch::Receiver<bool>,
    ) -> io::Result<()> {
        match connection {
            Incoming::Plain(Accepted::Tcp(stream)) => {
                let stream = TcpStream::from_std(stream)?;
                if !reject_tls(&stream, opened.account(), self).await {
                    serve(stream, opened, self, stopping).await;
                }
            }
            Incoming::Plain(Accepted::Unix(stream)) => {
                serve(UnixStream::from_std(stream)?, opened, self, stopping).await;
            }
            Incoming::Secured(mut stream) => {
                stream.get_mut().0.attach()?;
                serve(stream, opened, self, stopping).await;
            }
        }
        Ok(())
    }

    fn log_failed(&self, error: &io::Error) {
        if let Some(suppressed) = self.failed.admit(Instant::now()) {
            tracing::warn!(%error, suppressed, "cannot serve a connection");
        }
    }
}

impl<S: Store> Services<S> {
    fn handle(
        &self,
        call: Request<RecvStream>,
        respond: SendResponse<UnreadBytes>,
        now: Timestamp,
        account: &Arc<ConnectionAccount>,
    ) -> (CallKind, impl Future<Output = ()>) {
        let kind = if call.uri().path() == Service::<S>::PATH { CallKind::Decision } else { CallKind::Other };
        let mut call = call;
        let handled = async move {
            if let Err(status) = request_headers::check(&call, account) {
                // an error means that the call was aborted
                let _ = send(respond, Err(status), account);
                return;
            }
            match kind {
                CallKind::Decision => {
                    let arrival = self.connections.bounds().arrival;
                    let response = self.service.handle(&mut call, now, account, arrival).await;
                    if let Err(error) = send(respond, response, account) {
                        tracing::debug!(%error, "call aborted");
                    }
                }
                // boxed, since all calls share a slot that is as large as the largest future
                CallKind::Other => Box::pin(self.handle_other(call, respond, account)).await,
            }
        };
        (kind, handled)
    }

    async fn handle_other(
        &self,
        call: Request<RecvStream>,
        respond: SendResponse<UnreadBytes>,
        account: &Arc<ConnectionAccount>,
    ) {
        if let Some(method) = Method::at(call.uri().path()) {
            return self.acquire.handle(method, call, respond, account, self.connections.bounds()).await;
        }
        // until it ends, since its message is read elsewhere
        let weight = CALL + health_and_reflection::MAX_REQUEST + request_headers::weight(&call);
        let _hold = match account.hold(weight) {
            Ok(hold) => hold,
            Err(error) => {
                // an error means that the call was aborted
                let _ = send(respond, Err(error.into()), account);
                return;
            }
        };
        let sending = self.connections.bounds().sending;
        health_and_reflection::handle(self.health_and_reflection.clone(), call, respond, account, sending)
            .await;
    }
}

/// Logs why a connection ended, at debug level: clients disconnect in many ways, and none needs action here.
fn log_end<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection lost");
    }
}
