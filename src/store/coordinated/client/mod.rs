//! The store client: the parts between a decision and the shared store that do not depend on local counters.
//!
//! It sends calls ([`caller`]), estimates the store's clock ([`clock`]) and the round trip, opens a circuit breaker for nodes
//! that do not reply ([`breaker`]), batches single commands ([`batcher`]) and counts the instances ([`heartbeat`]).

mod batcher;
mod breaker;
mod caller;
mod clock;
mod heartbeat;
mod pool_call;
#[cfg(all(test, feature = "simulated"))]
mod tests;

use std::sync::Arc;

use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
};

pub(super) use self::batcher::{Exchanges, QueuedCommand, QueuedOutcome};
use self::{
    batcher::{Batcher, TimedReply},
    breaker::FailedCount,
    caller::Caller,
    heartbeat::Membership,
};
use super::{
    delivery::Undecided, metrics::CoordinationMetrics, settings::CoordinationSettings, store_time::StoreTime,
};
use crate::{
    clock::Clock,
    limit::{Coordination, CounterKey, Period, Timestamp},
    store::remote::{Command, Remote, RemoteError, Replies, StoreNode, Target, Urgency},
};

/// The time between two looks at whether the node of a command that has no reply yet has become silent.
pub(super) const RECHECK: Period = Period::from_millis(100);

/// The modes in the order of fallback: a mode that the store does not support is replaced by the next one.
const MODES: [Coordination; 4] =
    [Coordination::Lease, Coordination::Strict, Coordination::Interval, Coordination::Local];

/// This instance's access to the shared store.
pub(super) struct StoreClient<R> {
    caller: Caller<R>,
    batcher: Batcher,
    membership: Membership,
    /// Runs the background work. The threads that make decisions may end sooner.
    runtime: Handle,
}

// === impl StoreClient ===

impl<R: Remote> StoreClient<R> {
    /// Creates a client of `remote`, which need not be reachable yet. Must be called within a tokio runtime.
    pub(super) fn new(
        remote: R,
        clock: Arc<dyn Clock>,
        settings: &CoordinationSettings,
        metrics: Arc<CoordinationMetrics>,
    ) -> Self {
        Self {
            caller: Caller::new(remote, clock, metrics),
            batcher: Batcher::default(),
            membership: Membership::new(settings.instance.clone(), settings.heartbeat),
            runtime: Handle::current(),
        }
    }

    /// Starts the heartbeat and the batcher, which sends what `exchanges` composes.
    pub(super) fn start(self: &Arc<Self>, exchanges: Arc<impl Exchanges>, tasks: &mut JoinSet<()>) {
        let client = Arc::clone(self);
        tasks.spawn(async move { client.membership.run(&client.caller).await });
        let client = Arc::clone(self);
        tasks.spawn(async move { client.batcher.run(&client.caller, &*exchanges).await });
    }

    /// Runs `work` in the background.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(work)
    }

    /// Returns the shared store.
    pub(super) const fn remote(&self) -> &R {
        &self.caller.remote
    }

    /// Returns the number of instances, this one included; at least 1.
    pub(super) fn instances(&self) -> usize {
        self.membership.instances()
    }

    /// Returns the largest number of instances lately, this one included. None until a heartbeat was replied to.
    pub(super) fn most_instances_lately(&self) -> Option<usize> {
        self.membership.most_instances_lately()
    }

    /// Returns the moving average of the time from a call to its reply.
    pub(super) fn round_trip(&self) -> Period {
        self.caller.round_trip()
    }

    /// Returns the store's time.
    pub(super) fn time(&self) -> StoreTime {
        self.caller.time()
    }

    /// Converts `now` on this instance's clock to the store's.
    pub(super) fn time_at(&self, now: Timestamp) -> StoreTime {
        self.caller.store_clock.at(now)
    }

    /// Returns the store's time, but no earlier than when this instance's clock showed `now`.
    pub(super) fn time_since(&self, now: Timestamp) -> StoreTime {
        self.caller.store_clock.at(self.caller.clock.now().max(now))
    }

    /// Returns the present instant on this instance's clock, but no earlier than `now`.
    pub(super) fn local_time_since(&self, now: Timestamp) -> Timestamp {
        self.caller.clock.now().max(now)
    }

    /// Returns how far the store's clock is ahead of this instance's, in nanoseconds.
    pub(super) fn clock_offset(&self) -> i64 {
        self.caller.store_clock.offset()
    }

    /// Sends `commands` like [`StoreClient::call`], but behind those that decisions wait for.
    pub(super) async fn call_in_background(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        self.caller.call(commands, Urgency::Background).await
    }

    /// Queues `command`, to be sent in a batch with others. Commands for one target are sent in the order in which they are
    /// queued.
    pub(super) fn queue(&self, command: Command) -> QueuedCommand {
        let node = self.node(&command.target, command.at);
        self.batcher.queue(node, command)
    }

    /// Queues the counter of `key`, whose tries about `target` wait as of `at`. Returns whether there was room.
    pub(super) fn queue_counter(&self, key: CounterKey, target: &Target, at: Timestamp) -> bool {
        self.batcher.queue_counter(self.node(target, at), key)
    }

    /// Returns the outcome of `queued`, whose reply is not awaited any longer, after `waited`. It is taken back, unless it was sent.
    pub(super) fn give_up(&self, queued: &mut QueuedCommand, waited: Period) -> QueuedOutcome {
        self.batcher.give_up(queued, waited)
    }

    /// Takes `queued` back, unless it was sent. Returns whether it is never sent.
    pub(super) fn cancel(&self, queued: &mut QueuedCommand) -> bool {
        self.batcher.cancel(queued)
    }

    /// Waits for the reply to `queued`, but no longer than `budget`. Then it is taken back, unless it was sent.
    pub(super) async fn receive(
        &self,
        queued: QueuedCommand,
        budget: Period,
    ) -> Result<TimedReply, Undecided> {
        self.batcher.receive(queued, budget).await
    }

    /// Returns the node that counts `target` at the instant `at`.
    pub(super) fn node(&self, target: &Target, at: Timestamp) -> StoreNode {
        self.caller.remote.node(target, at)
    }

    /// Returns whether the store supports `mode` for `target`.
    pub(super) fn supports(&self, target: &Target, mode: Coordination) -> bool {
        mode == Coordination::Local || self.caller.remote.supports(target, mode)
    }

    /// Returns `requested`, or the nearest mode after it in [`MODES`] that the store supports for `target`.
    pub(super) fn nearest_mode(&self, target: &Target, requested: Coordination) -> Coordination {
        let mut modes = MODES.into_iter().skip_while(|mode| *mode != requested);
        modes.find(|mode| self.supports(target, *mode)).unwrap_or(Coordination::Local)
    }

    /// Records that a decision about `target` had no reply within its budget.
    pub(super) fn record_late_decision(&self, target: &Arc<Target>, at: Timestamp) {
        let failed = FailedCount { target: Arc::clone(target), at };
        self.caller.record_failure(self.node(target, at), Some(failed));
    }

    /// Returns whether the breaker is open for any node.
    pub(super) fn is_unavailable(&self) -> bool {
        self.caller.breaker.is_open()
    }

    /// Returns whether the breaker is open for `node`.
    pub(super) fn is_silent(&self, node: StoreNode) -> bool {
        self.caller.breaker.is_open() && self.caller.breaker.is_open_for(node)
    }

    /// Returns whether the breaker is open for the node that counts `target`.
    pub(super) fn is_unavailable_for(&self, target: &Target, at: Timestamp) -> bool {
        self.caller.breaker.is_open() && self.caller.breaker.is_open_for(self.node(target, at))
    }

    /// Deregisters this instance and stops the heartbeats.
    pub(super) async fn leave(&self) {
        self.membership.leave(&self.caller).await;
    }
}
