//! The handle of one server: it queues calls for the worker that owns the connection.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::timeout_at,
};

use super::{
    background::BackgroundWindow,
    backoff::Backoff,
    metrics::TransportMetrics,
    protocol::RemoteProtocol,
    queue::{CallQueue, MAX_WAITING, PendingReply, QueuedCall, WaitingCalls},
    state::ServerState,
    worker::{self, ConnectionWorker, SharedServerState},
};
use weir_store::remote::{CallPriority, RemoteError};

/// One server. Clones are the same server; when the last one is dropped, the worker ends.
pub(crate) struct ServerConnection<P: RemoteProtocol>(Arc<ServerHandle<P>>);

struct ServerHandle<P: RemoteProtocol> {
    /// Unbounded, since `waiting` bounds each priority by itself.
    calls: mpsc::UnboundedSender<QueuedCall<P::Command, P::Reply>>,
    waiting: WaitingCalls,
    background: BackgroundWindow,
    shared: Arc<SharedServerState>,
    timeout: Duration,
}

// === impl ServerConnection ===

impl<P: RemoteProtocol> ServerConnection<P> {
    pub(crate) fn open(protocol: P, backoff: Backoff, metrics: Arc<TransportMetrics>) -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let shared = Arc::new(SharedServerState::new(protocol.name()));
        let timeout = protocol.timeout();
        let worker = ConnectionWorker {
            protocol: Arc::new(protocol),
            backoff,
            calls,
            queue: CallQueue::default(),
            shared: Arc::clone(&shared),
            metrics,
        };
        tokio::spawn(worker.run());
        let (waiting, background) = (WaitingCalls::default(), BackgroundWindow::default());
        Self(Arc::new(ServerHandle { calls: sender, waiting, background, shared, timeout }))
    }

    /// Background commands wait for their turn first.
    pub(crate) async fn exchange(
        &self,
        commands: Vec<P::Command>,
        priority: CallPriority,
        deadline: Instant,
    ) -> Result<P::Reply, RemoteError> {
        let _permit = match priority {
            CallPriority::Background => {
                // these commands were not written yet
                let entered = timeout_at(deadline.into(), self.0.background.enter()).await;
                entered.map_err(|_| RemoteError::NotSent("other commands take too long".into()))?
            }
            CallPriority::Decision => None,
        };
        let mut pending = self.send(commands, priority)?;
        match timeout_at(deadline.into(), pending.receive()).await {
            Ok(received) => received,
            Err(_) => pending.give_up(RemoteError::TimedOut(worker::period(self.0.timeout))),
        }
    }

    /// Behind those that were queued before.
    pub(crate) fn post(
        &self,
        commands: Vec<P::Command>,
        done: impl FnOnce(Result<P::Reply, RemoteError>) + Send + 'static,
    ) {
        match self.send(commands, CallPriority::Decision) {
            Ok(mut pending) => drop(tokio::spawn(async move { done(pending.receive().await) })),
            Err(error) => done(Err(error)),
        }
    }

    fn send(
        &self,
        commands: Vec<P::Command>,
        priority: CallPriority,
    ) -> Result<PendingReply<P::Reply>, RemoteError> {
        let Some((call, pending)) = self.0.waiting.call(commands, priority) else {
            return Err(RemoteError::NotSent(format!("its queue is full: {MAX_WAITING} calls are waiting")));
        };
        match self.0.calls.send(call) {
            Ok(()) => Ok(pending),
            Err(_) => Err(RemoteError::NotSent("its connection was closed".into())),
        }
    }

    pub(crate) fn record_decision(&self) {
        self.0.background.record_decision();
    }

    pub(crate) fn cost(&self, priority: CallPriority) -> usize {
        self.0.background.cost(priority)
    }

    /// A connection younger than half a second stays: it was made after the failure that the caller has seen.
    pub(crate) fn renew(&self) {
        const RECENT: Duration = Duration::from_millis(500);
        let state = self.0.shared.state.lock();
        if state.connected && state.since.elapsed() > RECENT {
            self.0.shared.renew.notify_one();
        }
    }

    /// For a server that is no longer a master: replies count no longer, and are dropped after a second.
    pub(crate) fn close(&self) {
        self.0.shared.close.notify_one();
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the server is connected, or an attempt to connect has failed.
    pub(crate) fn is_attempted(&self) -> bool {
        let state = self.0.shared.state.lock();
        state.connected || state.error.is_some()
    }

    pub(crate) fn state(&self) -> ServerState {
        self.0.shared.state.lock().clone()
    }
}

impl<P: RemoteProtocol> Clone for ServerConnection<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

// === impl SharedServerState ===

impl SharedServerState {
    fn new(name: String) -> Self {
        Self {
            state: Mutex::new(ServerState { name, connected: false, since: Instant::now(), error: None }),
            renew: Notify::new(),
            close: Notify::new(),
        }
    }
}
