//! One connection: handshake, calls, graceful shutdown.
//!
//! A call is handled where it is read, without a task, channel or timer of its own. The driver first reads all calls
//! that have arrived, then handles them as one batch: one write carries the responses to all calls of one read, and the
//! clock is read once per batch. Only a call that has to wait, for a store or for the rest of its message, is set
//! aside.

use std::{
    collections::VecDeque,
    future::{self, Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt as _,
    stream::{FuturesUnordered, StreamExt as _},
};
use h2::{
    Ping, PingPong, RecvStream,
    server::{Builder, SendResponse},
};
use http::Request;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
    time::{self, timeout},
};

use super::{
    resets::{NamedAnswers, Watched},
    response::reject_unread,
    server::Services,
    service::BegunRequest,
};
use crate::{
    connections::{Connection, ConnectionAccount, Metered, UnreadBytes},
    listening::TLS_HANDSHAKE,
};
use weir_limit::Timestamp;
use weir_observe::{MethodStats, method_stats::CallTimer};
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

/// The largest batch: its first call waits for its last. As many may wait for a client that reads no responses.
const BATCH: usize = 256;

/// The most places, 2 kB each, that a connection keeps after their calls have waited. An idle connection keeps one.
const SLOTS: usize = 32;

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
    // a connection that was opened before there were such rules is not watched: that costs a little for each frame
    let answers = services.service.may_name().then(NamedAnswers::default);
    let undo = |begun: &BegunRequest| {
        // a store that is elsewhere frees places later
        let _ = services.service.undo(begun).now_or_never();
    };
    let io = Watched::new(Metered::new(io, Arc::clone(account)), answers.as_ref(), undo);
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
    let handle = |call, respond, now| services.handle(call, respond, now, account, answers.as_ref());
    let mut driver = CallDriver::new(connection, open, services.service.stats(), &active, &now, handle);
    let serving = async {
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
    };
    serving.await;
    driver.finish().await;
}

/// Whether the first byte begins a TLS handshake, which is logged, or the client sent none. Waits for that byte.
pub(super) async fn speaks_tls<S>(
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

/// Logs why a connection ended, at debug level: clients disconnect in many ways, and none needs action here.
fn log_end<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection lost");
    }
}

pub(super) struct CallDriver<'a, I, H, F> {
    connection: h2::server::Connection<I, UnreadBytes>,
    open: &'a Connection,
    stats: &'a MethodStats,
    now: &'a (dyn Fn() -> Timestamp + Sync),
    handle: H,
    batch: VecDeque<(Request<RecvStream>, SendResponse<UnreadBytes>)>,
    /// Places for the futures of calls. Calls that need not wait share the last one; those that waited leave theirs.
    slots: Vec<Pin<Box<F>>>,
    waiting: FuturesUnordered<WaitingRequest<'a, F>>,
    active: &'a AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    Decision,
    /// Has no stats.
    Other,
}

struct WaitingRequest<'a, F> {
    handled: Option<Pin<Box<F>>>,
    /// Counts the call when it completes or is cancelled. Only decisions have one.
    timer: Option<CallTimer<'a>>,
}

impl<'a, I, H, F> CallDriver<'a, I, H, F>
where
    I: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Request<RecvStream>, SendResponse<UnreadBytes>, Timestamp) -> (CallKind, F),
    F: Future<Output = ()>,
{
    /// `handle` handles each call as of the time that `now` returns. Sets `active` whenever calls arrive.
    pub(super) fn new(
        connection: h2::server::Connection<I, UnreadBytes>,
        open: &'a Connection,
        stats: &'a MethodStats,
        active: &'a AtomicBool,
        now: &'a (dyn Fn() -> Timestamp + Sync),
        handle: H,
    ) -> Self {
        Self {
            connection,
            open,
            stats,
            now,
            handle,
            batch: VecDeque::new(),
            slots: Vec::new(),
            waiting: FuturesUnordered::new(),
            active,
        }
    }

    /// Handles calls until the connection ends. Dropping the future loses no call.
    pub(super) async fn run(&mut self) -> Result<(), h2::Error> {
        poll_fn(|context| self.poll(context)).await
    }

    pub(super) fn shut_down(&mut self) {
        self.connection.graceful_shutdown();
    }

    /// Has the decisions made that wait, since ends count whatever becomes of their callers. What began is undone. Waits
    /// for the store at most.
    async fn finish(self) {
        let Self { connection, waiting, .. } = self;
        // messages that have not arrived never do
        drop(connection);
        let decisions = waiting.into_iter().filter(|request| request.timer.is_some());
        decisions.collect::<FuturesUnordered<_>>().for_each(|_| future::ready(())).await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let ended = self.poll_calls(context);
        self.slots.truncate(self.waiting.len() + 1);
        self.open.report();
        ended
    }

    fn poll_calls(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            // before the connection, which then writes their responses; calls that began to wait in the last round must
            // be polled here once to register their wakers
            while !self.must_wait()
                && let Poll::Ready(Some(slot)) = self.waiting.poll_next_unpin(context)
            {
                self.slots.extend(slot.filter(|_| self.slots.len() < SLOTS));
            }
            let more = self.read(context);
            // the connection wakes the task when the client has read responses
            if self.batch.is_empty() || self.must_wait() {
                return more;
            }
            self.handle_batch(context);
            if more.is_ready() {
                return more;
            }
        }
    }

    fn must_wait(&self) -> bool {
        self.open.account().must_wait()
    }

    /// Also writes pending responses. Ready when the connection has ended.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        // from a client that does not read its responses, everything is read, since only that shows when it does
        while self.batch.len() < BATCH || self.must_wait() {
            match self.connection.poll_accept(context) {
                Poll::Ready(Some(Ok(call))) if self.batch.len() < BATCH => self.batch.push_back(call),
                Poll::Ready(Some(Ok((_, respond)))) => reject_unread(respond, self.open.account()),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    fn handle_batch(&mut self, context: &mut Context<'_>) {
        self.active.store(true, Ordering::Relaxed);
        self.open.account().record_calls(self.batch.len());
        let (begun, now) = (Instant::now(), (self.now)());
        let mut decided = 0;
        while !self.must_wait()
            && let Some((call, respond)) = self.batch.pop_front()
        {
            let (kind, handled) = (self.handle)(call, respond, now);
            let mut slot = match self.slots.pop() {
                Some(mut slot) => {
                    slot.set(handled);
                    slot
                }
                None => Box::pin(handled),
            };
            match (slot.as_mut().poll(context), kind) {
                (Poll::Ready(()), kind) => {
                    decided += u64::from(kind == CallKind::Decision);
                    self.slots.push(slot);
                }
                (Poll::Pending, kind) => {
                    let timer = (kind == CallKind::Decision).then(|| self.stats.begin_at(begun));
                    self.waiting.push(WaitingRequest { handled: Some(slot), timer });
                }
            }
        }
        // the responses leave together, so each call took as long as the batch
        self.stats.record(decided, begun.elapsed());
    }
}

impl<F: Future<Output = ()>> Future for WaitingRequest<'_, F> {
    /// Its place, for another call.
    type Output = Option<Pin<Box<F>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(handled) = &mut self.handled {
            std::task::ready!(handled.as_mut().poll(context));
        }
        Poll::Ready(self.handled.take())
    }
}
