//! The handle of one server: it queues calls for the worker that owns the connection.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::Cmd;
use tokio::sync::{Notify, mpsc};

use super::{
    background::BackgroundWindow,
    metrics::RedisMetrics,
    queue::{CallQueue, MAX_WAITING, PendingReply, QueuedCall, WaitingCalls},
    random::RandomGenerator,
    resolver::Resolver,
    server_state::ServerState,
    settings::{Backoff, Endpoint},
    worker::{ConnectionWorker, SharedServerState},
};
use crate::store::remote::{RemoteError, Urgency};

/// One server. Clones are the same server; when the last one is dropped, the worker ends.
#[derive(Clone)]
pub(super) struct ServerConnection {
    /// Unbounded, since `waiting` bounds each urgency by itself.
    calls: mpsc::UnboundedSender<QueuedCall>,
    waiting: Arc<WaitingCalls>,
    background: Arc<BackgroundWindow>,
    shared: Arc<SharedServerState>,
}

// === impl ServerConnection ===

impl ServerConnection {
    /// Opens the server that `resolver` finds. The connection is made in the background.
    pub(super) fn open(
        endpoint: Arc<Endpoint>,
        resolver: Resolver,
        backoff: Backoff,
        metrics: Arc<RedisMetrics>,
        random: Arc<RandomGenerator>,
    ) -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let shared = Arc::new(SharedServerState::new(resolver.name()));
        let worker = ConnectionWorker {
            endpoint,
            resolver,
            backoff,
            calls,
            queue: CallQueue::default(),
            shared: Arc::clone(&shared),
            metrics,
            random,
        };
        tokio::spawn(worker.run());
        Self { calls: sender, waiting: Arc::default(), background: Arc::default(), shared }
    }

    /// Queues `commands`, which are sent together and in their order.
    pub(super) fn send(&self, commands: Vec<Cmd>, urgency: Urgency) -> Result<PendingReply, RemoteError> {
        let Some((call, pending)) = self.waiting.call(commands, urgency) else {
            return Err(RemoteError::NotSent(format!("its queue is full: {MAX_WAITING} calls are waiting")));
        };
        match self.calls.send(call) {
            Ok(()) => Ok(pending),
            Err(_) => Err(RemoteError::NotSent("its connection was closed".into())),
        }
    }

    /// Returns the window of its background calls.
    pub(super) const fn background(&self) -> &Arc<BackgroundWindow> {
        &self.background
    }

    /// Replaces the connection, unless it is younger than half a second: such a connection was made after the failure that
    /// the caller has seen.
    pub(super) fn renew(&self) {
        const RECENT: Duration = Duration::from_millis(500);
        let state = self.shared.state.lock();
        if state.connected && state.since.elapsed() > RECENT {
            self.shared.renew.notify_one();
        }
    }

    /// Closes the connection to a server that is no longer a master. Replies that have not arrived within a second are
    /// dropped, since they no longer count.
    pub(super) fn close(&self) {
        self.shared.close.notify_one();
    }

    /// Returns whether both are the same server.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the state of its connection.
    pub(super) fn state(&self) -> ServerState {
        self.shared.state.lock().clone()
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
