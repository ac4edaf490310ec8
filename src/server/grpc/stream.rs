//! Calls and answers on one connection.
//!
//! A decision is made where its call is read: no task, no channel and no timer for it. All calls that have come are read
//! first and answered then, so that one write carries what one read has brought; and the clock is read once for all of
//! them. Only a decision that has to wait (for a store, or for the rest of its message) is set aside.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use h2::{RecvStream, server::SendResponse};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    limit::Timestamp,
    observe::stats::{Call, MethodStats},
};

/// Calls that are answered together at most: the first of them waits until the last one was read.
const BATCH: usize = 256;

/// One connection's calls.
pub(super) struct StreamDriver<'a, I, A, F> {
    connection: h2::server::Connection<I, Bytes>,
    stats: &'a MethodStats,
    /// Tells the time of a batch.
    now: &'a (dyn Fn() -> Timestamp + Sync),
    /// Answers a call.
    answer: A,
    /// Calls that have been read and not been answered yet.
    batch: Vec<(Request<RecvStream>, SendResponse<Bytes>)>,
    /// Where the next call is answered: the same place for all that need not wait, so that none of them allocates it.
    place: Option<Pin<Box<F>>>,
    waiting: FuturesUnordered<Waiting<'a, F>>,
    /// Set when something has come.
    heard: &'a AtomicBool,
}

/// What kind of call one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It asks for a decision.
    Decision,
    /// It asks for something else, which is not counted.
    Other,
}

/// A call that could not be answered at once.
struct Waiting<'a, F> {
    answer: Pin<Box<F>>,
    /// Counts it when it is answered, or given up.
    _call: Option<Call<'a>>,
}

impl<'a, I, A, F> StreamDriver<'a, I, A, F>
where
    I: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<RecvStream>, SendResponse<Bytes>, Timestamp) -> (Kind, F),
    F: Future<Output = ()>,
{
    /// The calls of `connection`, answered by `answer` as of the time that `now` tells, and counted in `stats`; `heard` is
    /// set whenever one has come.
    pub(super) fn new(
        connection: h2::server::Connection<I, Bytes>,
        stats: &'a MethodStats,
        heard: &'a AtomicBool,
        now: &'a (dyn Fn() -> Timestamp + Sync),
        answer: A,
    ) -> Self {
        Self {
            connection,
            stats,
            now,
            answer,
            batch: Vec::new(),
            place: None,
            waiting: FuturesUnordered::new(),
            heard,
        }
    }

    /// Answers calls until the connection has ended. To give up waiting for that loses nothing.
    pub(super) async fn run(&mut self) -> Result<(), h2::Error> {
        poll_fn(|context| self.poll(context)).await
    }

    /// LimitChecks the client to open another connection; this one ends with what is open on it.
    pub(super) fn shut_down(&mut self) {
        self.connection.graceful_shutdown();
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            // before the connection, which takes their answers along; and those that have just begun to wait are woken only
            // once they were polled as part of this
            while let Poll::Ready(Some(())) = self.waiting.poll_next_unpin(context) {}
            let more = self.read(context);
            if self.batch.is_empty() {
                return more;
            }
            self.answer_batch(context);
            if more.is_ready() {
                return more;
            }
        }
    }

    /// Reads what has come, and writes what was answered. Ready when the connection has ended.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        while self.batch.len() < BATCH {
            match self.connection.poll_accept(context) {
                Poll::Ready(Some(Ok(call))) => self.batch.push(call),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    fn answer_batch(&mut self, context: &mut Context<'_>) {
        self.heard.store(true, Ordering::Relaxed);
        let (begun, now) = (Instant::now(), (self.now)());
        let mut decided = 0;
        for (call, respond) in self.batch.drain(..) {
            let (kind, answer) = (self.answer)(call, respond, now);
            let place = match &mut self.place {
                Some(place) => {
                    place.set(answer);
                    place
                }
                none => none.insert(Box::pin(answer)),
            };
            match (place.as_mut().poll(context), kind) {
                (Poll::Ready(()), Kind::Decision) => decided += 1,
                (Poll::Ready(()), Kind::Other) => {}
                (Poll::Pending, kind) => {
                    let call = (kind == Kind::Decision).then(|| self.stats.begin_at(begun));
                    self.waiting.extend(self.place.take().map(|answer| Waiting { answer, _call: call }));
                }
            }
        }
        // they leave together, so that each of them took as long as all of them
        self.stats.record(decided, begun.elapsed());
    }
}

impl<F: Future<Output = ()>> Future for Waiting<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.answer.as_mut().poll(context)
    }
}
