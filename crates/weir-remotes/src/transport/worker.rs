//! The task that owns the connection to one server: it connects, sends the queued calls, and reconnects when the
//! connection breaks.
//!
//! Calls are batched: while pipelines are in flight, calls queue up, and the next pipeline takes as many as it may
//! hold. Calls of decisions go first, and never share a pipeline with background calls, whose replies they would wait
//! for. The `queue` holds them in this order. Without a connection, calls fail at once instead of waiting: their
//! callers can decide without the store.
//!
//! A command that may have been carried out is never sent again. When a connection breaks, every call in flight on it
//! fails.

use std::{
    future::Future,
    mem::take,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time,
};

use super::{
    backoff::Backoff,
    metrics::TransportMetrics,
    protocol::{Connection, RemoteProtocol},
    queue::{CallQueue, QueuedCall},
    state::ServerState,
};
use weir_limit::Period;
use weir_net::Address;
use weir_store::remote::{CallPriority, RemoteError};

/// A connection that breaks earlier counts as a failure to connect, after which the next attempt waits.
const BRIEF: Duration = Duration::from_millis(100);

/// How long callers wait for a connection that is expected to succeed, and for the replies of one that is given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pipelines of decisions: one for each call that coordination has on its way to a node, unless more of them are full.
/// Calls beyond wait, and those that arrive meanwhile share a pipeline.
pub(super) const MAX_IN_FLIGHT: usize = 16;

const TAKEN_AT_ONCE: usize = 64;

pub(super) struct SharedServerState {
    pub(super) state: Mutex<ServerState>,
    pub(super) renew: Notify,
    pub(super) close: Notify,
}

pub(super) struct ConnectionWorker<P: RemoteProtocol> {
    pub(super) protocol: Arc<P>,
    pub(super) backoff: Backoff,
    pub(super) calls: mpsc::UnboundedReceiver<QueuedCall<P::Command, P::Reply>>,
    pub(super) queue: CallQueue<P::Command, P::Reply>,
    pub(super) shared: Arc<SharedServerState>,
    pub(super) metrics: Arc<TransportMetrics>,
}

/// Each connection has its own: a missing reply on an old connection says nothing about its successor.
#[derive(Clone)]
struct ConnectionState {
    in_flight: Arc<AtomicUsize>,
    returned: Arc<Notify>,
    failed: Arc<Notify>,
}

// === impl ConnectionWorker ===

impl<P: RemoteProtocol> ConnectionWorker<P> {
    pub(super) async fn run(mut self) {
        let (mut failures, mut expected) = (0, true);
        loop {
            let end = match self.connect(expected).await {
                None => return,
                Some(Ok((address, connection))) => {
                    tracing::debug!(server = %address, "connected to a {} server", P::STORE);
                    let started = Instant::now();
                    let end = self.serve(address, connection).await;
                    failures = if started.elapsed() < BRIEF { failures + 1 } else { 0 };
                    end
                }
                Some(Err(error)) => {
                    failures += 1;
                    Some(error)
                }
            };
            let Some(error) = end else { return };
            self.metrics.disconnected.add(1);
            self.set_state(false, Some(error));
            // after a connection that lasted, the next one usually succeeds at once
            expected = failures == 0;
            if expected {
                continue;
            }
            let wait = time::sleep(self.backoff.wait(failures, fastrand::u64(..)));
            if self.reject_while(wait).await.is_none() {
                return;
            }
        }
    }

    /// Callers wait up to [`PATIENCE`] if the connection is expected to succeed. None if no handle is left.
    async fn connect(&mut self, expected: bool) -> Option<Result<(Address, P::Connection), String>> {
        let protocol = Arc::clone(&self.protocol);
        let connecting = protocol.connect();
        tokio::pin!(connecting);
        if expected && let Ok(connected) = time::timeout(PATIENCE, &mut connecting).await {
            return Some(connected);
        }
        self.reject_while(connecting).await
    }

    /// Fails every call until `done` completes. None if no handle is left.
    async fn reject_while<T>(&mut self, done: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(done);
        while let Some(call) = self.queue.pop() {
            self.reject(call);
        }
        loop {
            tokio::select! {
                done = &mut done => return Some(done),
                call = self.calls.recv() => self.reject(call?),
            }
        }
    }

    fn reject(&self, call: QueuedCall<P::Command, P::Reply>) {
        let error = self.shared.state.lock().error.clone();
        call.fail(RemoteError::NotSent(error.unwrap_or_else(|| "no connection yet".into())));
    }

    fn set_state(&self, connected: bool, error: Option<String>) {
        let mut state = self.shared.state.lock();
        if let Some(error) = &error
            && state.error.as_ref() != Some(error)
        {
            tracing::debug!(%error, server = state.name, "no connection to a {} server", P::STORE);
        }
        if state.connected != connected {
            state.since = Instant::now();
        }
        state.connected = connected;
        state.error = error;
    }

    /// Returns why there must be another connection. None if no handle is left, or the server is closed.
    async fn serve(&mut self, address: Address, mut connection: P::Connection) -> Option<String> {
        self.shared.state.lock().name = self.protocol.name_at(&address);
        self.set_state(true, None);
        let mut calls = Vec::new();
        let state =
            ConnectionState { in_flight: Arc::default(), returned: Arc::default(), failed: Arc::default() };
        let protocol = Arc::clone(&self.protocol);
        let moved = protocol.moved(&address);
        tokio::pin!(moved);
        loop {
            let may_decide = || state.in_flight.load(Ordering::Relaxed) < MAX_IN_FLIGHT;
            while let Some(pipeline) = self.queue.next_pipeline(may_decide()) {
                self.send(&connection, &state, pipeline);
            }
            tokio::select! {
                // a fixed order, so that the cause is reported and not its consequence
                biased;
                () = connection.ended() => return Some("the connection broke".into()),
                // a server that is late may never reply again, so later calls must not wait for it
                () = state.failed.notified() => {
                    connection.retire(self.protocol.timeout());
                    return Some("it did not reply".into());
                }
                () = self.shared.close.notified() => {
                    connection.retire(self.protocol.timeout().min(PATIENCE));
                    self.calls.close();
                    while let Some(call) = self.queue.pop().or_else(|| self.calls.try_recv().ok()) {
                        call.fail(RemoteError::NotSent("it is no longer a master".into()));
                    }
                    return None;
                }
                () = self.shared.renew.notified() => {
                    connection.retire(self.protocol.timeout());
                    return Some("the connection must be replaced".into());
                }
                to = &mut moved => {
                    connection.retire(self.protocol.timeout().min(PATIENCE));
                    return Some(format!("the master has moved to {to}"));
                }
                () = state.returned.notified() => {}
                // cancel-safe: no call is lost if another branch completes first
                taken = self.calls.recv_many(&mut calls, TAKEN_AT_ONCE) => {
                    if taken == 0 {
                        return None;
                    }
                    calls.drain(..).for_each(|call| self.queue.push(call));
                }
            }
        }
    }

    /// A separate task waits for the replies and delivers them.
    fn send(
        &self,
        connection: &P::Connection,
        state: &ConnectionState,
        mut calls: Vec<QueuedCall<P::Command, P::Reply>>,
    ) {
        let Some(priority) = calls.first().map(|call| call.priority) else { return };
        let exchange = connection.exchange(calls.iter_mut().map(|call| take(&mut call.commands)).collect());
        let (metrics, state, within) = (Arc::clone(&self.metrics), state.clone(), self.protocol.timeout());
        let is_counted = priority == CallPriority::Decision;
        if is_counted {
            state.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        tokio::spawn(async move {
            let started = Instant::now();
            let reply = time::timeout(within, exchange).await;
            if is_counted {
                // below the bound it has already sent what it had
                if state.in_flight.fetch_sub(1, Ordering::Relaxed) >= MAX_IN_FLIGHT {
                    state.returned.notify_one();
                }
            }
            metrics.pipeline(calls.len(), started.elapsed());
            let error = match reply {
                Ok(Ok(replies)) if replies.len() == calls.len() => {
                    return calls.into_iter().zip(replies).for_each(|(call, reply)| call.complete(reply));
                }
                Ok(Ok(_)) => RemoteError::Unreachable("its reply is incomplete".into()),
                Ok(Err(error)) => error,
                Err(_) => RemoteError::TimedOut(period(within)),
            };
            state.failed.notify_one();
            for call in calls {
                call.fail(error.clone());
            }
        });
    }
}

pub(super) fn period(length: Duration) -> Period {
    Period::from_nanos(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
}
