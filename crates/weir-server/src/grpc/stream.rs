//! The calls of one connection.
//!
//! A call is handled where it is read, without a task, channel or timer of its own. The driver first reads all calls
//! that have arrived, then handles them as one batch: one write carries the responses to all calls of one read, and the
//! clock is read once per batch. Only a call that has to wait, for a store or for the rest of its message, is set
//! aside.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
    time::Instant,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use h2::{RecvStream, server::SendResponse};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use super::response::reject_unread;
use crate::connections::{Connection, UnreadBytes};
use weir_limit::Timestamp;
use weir_observe::{MethodStats, method_stats::CallTimer};

/// The largest batch: its first call waits for its last. As many may wait for a client that reads no responses.
const BATCH: usize = 256;

/// The most places, 2 kB each, that a connection keeps after their calls have waited. An idle connection keeps one.
const SLOTS: usize = 32;

pub(super) struct StreamDriver<'a, I, H, F> {
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
    /// Counts the call when it completes or is cancelled.
    _timer: Option<CallTimer<'a>>,
}

impl<'a, I, H, F> StreamDriver<'a, I, H, F>
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
                    self.waiting.push(WaitingRequest { handled: Some(slot), _timer: timer });
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
