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
    address::Backoff,
    background::BackgroundWindow,
    metrics::TransportMetrics,
    protocol::RemoteProtocol,
    queue::{CallQueue, MAX_WAITING, PendingReply, QueuedCall, WaitingCalls},
    random::RandomGenerator,
    state::ServerState,
    worker::{self, ConnectionWorker, SharedServerState},
};
use weir_store::remote::{RemoteError, Urgency};

/// One server. Clones are the same server; when the last one is dropped, the worker ends.
pub(crate) struct ServerConnection<P: RemoteProtocol> {
    /// Unbounded, since `waiting` bounds each urgency by itself.
    calls: mpsc::UnboundedSender<QueuedCall<P::Command, P::Reply>>,
    waiting: Arc<WaitingCalls>,
    background: Arc<BackgroundWindow>,
    shared: Arc<SharedServerState>,
    timeout: Duration,
}

// === impl ServerConnection ===

impl<P: RemoteProtocol> ServerConnection<P> {
    pub(crate) fn open(
        protocol: P,
        backoff: Backoff,
        metrics: Arc<TransportMetrics>,
        random: Arc<RandomGenerator>,
    ) -> Self {
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
            random,
        };
        tokio::spawn(worker.run());
        Self { calls: sender, waiting: Arc::default(), background: Arc::default(), shared, timeout }
    }

    /// Background commands wait for their turn first.
    pub(crate) async fn exchange(
        &self,
        commands: Vec<P::Command>,
        urgency: Urgency,
        deadline: Instant,
    ) -> Result<P::Reply, RemoteError> {
        let _permit = match urgency {
            Urgency::Background => {
                // these commands were not written yet
                let entered = timeout_at(deadline.into(), self.background.enter()).await;
                entered.map_err(|_| RemoteError::NotSent("other commands take too long".into()))?
            }
            Urgency::Decision => None,
        };
        let mut pending = self.send(commands, urgency)?;
        match timeout_at(deadline.into(), pending.receive()).await {
            Ok(received) => received,
            Err(_) => pending.give_up(RemoteError::TimedOut(worker::period(self.timeout))),
        }
    }

    /// Behind those that were queued before.
    pub(crate) fn post(
        &self,
        commands: Vec<P::Command>,
        done: impl FnOnce(Result<P::Reply, RemoteError>) + Send + 'static,
    ) {
        match self.send(commands, Urgency::Decision) {
            Ok(mut pending) => drop(tokio::spawn(async move { done(pending.receive().await) })),
            Err(error) => done(Err(error)),
        }
    }

    fn send(
        &self,
        commands: Vec<P::Command>,
        urgency: Urgency,
    ) -> Result<PendingReply<P::Reply>, RemoteError> {
        let Some((call, pending)) = self.waiting.call(commands, urgency) else {
            return Err(RemoteError::NotSent(format!("its queue is full: {MAX_WAITING} calls are waiting")));
        };
        match self.calls.send(call) {
            Ok(()) => Ok(pending),
            Err(_) => Err(RemoteError::NotSent("its connection was closed".into())),
        }
    }

    pub(crate) fn record_decision(&self) {
        self.background.record_decision();
    }

    pub(crate) fn cost(&self, urgency: Urgency) -> usize {
        self.background.cost(urgency)
    }

    /// A connection younger than half a second stays: it was made after the failure that the caller has seen.
    pub(crate) fn renew(&self) {
        const RECENT: Duration = Duration::from_millis(500);
        let state = self.shared.state.lock();
        if state.connected && state.since.elapsed() > RECENT {
            self.shared.renew.notify_one();
        }
    }

    /// For a server that is no longer a master: replies count no longer, and are dropped after a second.
    pub(crate) fn close(&self) {
        self.shared.close.notify_one();
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Waits until the server is connected, or an attempt to connect has failed.
    pub(crate) async fn attempted(&self) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // before the check, so that no change is missed
            changed.as_mut().enable();
            let state = self.state();
            if state.connected || state.error.is_some() {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn state(&self) -> ServerState {
        self.shared.state.lock().clone()
    }
}

impl<P: RemoteProtocol> Clone for ServerConnection<P> {
    fn clone(&self) -> Self {
        Self {
            calls: self.calls.clone(),
            waiting: Arc::clone(&self.waiting),
            background: Arc::clone(&self.background),
            shared: Arc::clone(&self.shared),
            timeout: self.timeout,
        }
    }
}

// === impl SharedServerState ===

impl SharedServerState {
    fn new(name: String) -> Self {
        Self {
            state: Mutex::new(ServerState { name, connected: false, since: Instant::now(), error: None }),
            changed: Notify::new(),
            renew: Notify::new(),
            close: Notify::new(),
        }
    }
}
